-- A page of the chunks of live notes, in order of their ids.
-- $1 version, $2 ids above this, $3 and up to this, $4 chunks at most,
-- $5 whether to read texts and vectors, $6 whether to read vectors,
-- $7 bytes of text at most if texts are read; at least one chunk
select chunk_id, note_id, chunk_index, start_offset, end_offset, revision as "revision!",
       lead, text,
       has_vector as "has_vector!", awaits_vector, vec as "vec?: pgvector::Vector", status as "status!",
       expires_at, tenant_id as "tenant_id!", project_id as "project_id!",
       agent_id as "agent_id!", scope as "scope!", kind as "kind!", key, source,
       importance as "importance!", confidence as "confidence!", updated_at as "updated_at!", metadata
  from (select limited.*, sum(bytes) over (order by chunk_id) - bytes as bytes_before
          from (
        select c.chunk_id, c.note_id, c.chunk_index, c.start_offset, c.end_offset,
               -- Each commit of a note writes its revision here. Without a state, the chunk was
               -- written under its own.
               coalesce((select s.revision
                           from note_index_state s
                          where s.note_id = c.note_id
                            and s.embedding_version = c.embedding_version),
                        c.revision) as revision,
               case when $5 then c.lead end as lead, case when $5 then c.text end as text,
               e.chunk_id is not null as has_vector, c.awaits_vector,
               case when $5 or $6 then e.vec::vector end as vec,
               n.status, n.expires_at, n.tenant_id, n.project_id, n.agent_id, n.scope, n.kind, n.key, n.source,
               n.importance, n.confidence, n.updated_at, elf_metadata(n.metadata) as metadata,
               octet_length(c.lead) + octet_length(c.text) as bytes
          from memory_note_chunks c
         cross join lateral elf_note(c.note_id) n
          left join lateral elf_vector(c.chunk_id, c.embedding_version) e on true
         where c.embedding_version is not distinct from $1
           and c.chunk_id > $2 and c.chunk_id <= $3
           and n.is_live
         order by c.chunk_id
         limit $4) limited) page
 where not $5 or bytes_before < $7
 order by chunk_id
