-- Those of these chunks that belong to a live note with the requested labels. A point that a crash
-- left behind has no such chunk, and the note of a point with old labels has other labels now.
-- A point whose revision is not that of the chunk was found for another text or other labels.
-- Then `vec` is the chunk's vector, so that the search can score what the chunk says now.
-- `offset 0` makes Postgres look up each row by its key, even with wrong statistics.
-- $1 version, $2 chunk ids, $3 labels by name, $4 revisions of the points
select c.chunk_id as "chunk_id!", c.note_id as "note_id!", c.chunk_index as "chunk_index!",
       c.start_offset as "start_offset!", c.end_offset as "end_offset!", c.text as "text!",
       n.key as "key?", n.importance as "importance!", n.updated_secs as "updated_secs!",
       c.revision = u.revision as "is_current!",
       case when c.revision <> u.revision
            then (select e.vec
                    from note_chunk_embeddings e
                   where e.chunk_id = c.chunk_id
                     and e.embedding_version = c.embedding_version)
        end as "vec?: pgvector::Vector"
  from unnest($2::uuid[], $4::bigint[]) as u (chunk_id, revision)
 cross join lateral (
        select *
          from memory_note_chunks c
         where c.chunk_id = u.chunk_id
           and c.embedding_version is not distinct from $1 -- see chunk_page.sql
        offset 0) c
 cross join lateral (
        select n.key::text as key,
               -- Null and out of range are as in load_notes.sql.
               (case when abs(n.importance) between 1e-37 and 1e37 then n.importance else 0
                 end)::real as importance,
               -- Seconds, because an application may write 'infinity'.
               extract(epoch from coalesce(n.updated_at, 'epoch'))::float8 as updated_secs
          from memory_notes n
         where n.note_id = c.note_id
           and n.status = 'active' and (n.expires_at is null or n.expires_at > now())
           and not exists (
                select from jsonb_each_text($3) wanted
                 where wanted.value is distinct from
                       case wanted.key
                           when 'tenant_id' then n.tenant_id::text
                           when 'project_id' then n.project_id::text
                           when 'agent_id' then n.agent_id::text
                           when 'scope' then n.scope::text
                           when 'type' then n.type::text
                           when 'key' then n.key::text
                           when 'status' then n.status::text
                       end)
        offset 0) n
