-- The live notes whose pooled vector is nearest to that of a note, all within what a key reaches.
-- $1 note id, $2 version, $3 tenant, $4 project or null for all, $5 agent or null for all,
-- $6 least cosine, $7 notes at most
with asked as materialized (
    select e.vec
      from memory_notes n
      join note_embeddings e on e.note_id = n.note_id and e.embedding_version = $2
     where n.note_id = $1
       and n.tenant_id::text = $3
       and ($4::text is null or n.project_id::text = $4)
       and ($5::text is null or n.agent_id::text = $5)
)
select n.note_id as "note_id!", n.key::text as "key?",
       (1 - (e.vec <=> (select vec from asked)))::real as "similarity!"
  from memory_notes n
  join note_embeddings e on e.note_id = n.note_id and e.embedding_version = $2
 where exists (select from asked)
   and n.note_id <> $1
   and n.tenant_id::text = $3
   and ($4::text is null or n.project_id::text = $4)
   and ($5::text is null or n.agent_id::text = $5)
   and n.status = 'active' and (n.expires_at is null or n.expires_at > now())
   and 1 - (e.vec <=> (select vec from asked)) >= $6
 order by e.vec <=> (select vec from asked), n.note_id
 limit $7
