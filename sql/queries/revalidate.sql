-- Those of these chunks that belong to a live note with the requested labels. A point that a crash
-- left behind has no such chunk, and the note of a point with old labels has other labels now.
-- `offset 0` makes Postgres look up each row by its key, even with wrong statistics.
-- $1 version, $2 chunk ids, $3 what the note must be like, by name
select c.chunk_id as "chunk_id!", c.note_id as "note_id!", c.chunk_index as "chunk_index!",
       c.start_offset as "start_offset!", c.end_offset as "end_offset!", c.text as "text!",
       n.key as "key?", n.importance as "importance!", n.updated_secs as "updated_secs!",
       coalesce((select s.revision
                   from note_index_state s
                  where s.note_id = c.note_id and s.embedding_version = c.embedding_version),
                c.revision) as "revision!"
  from unnest($2::uuid[]) as u (chunk_id)
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
           and ($3::jsonb->>'tenant_id' is null or n.tenant_id::text = $3::jsonb->>'tenant_id')
           and ($3::jsonb->>'project_id' is null or n.project_id::text = $3::jsonb->>'project_id')
           and ($3::jsonb->>'agent_id' is null or n.agent_id::text = $3::jsonb->>'agent_id')
           and ($3::jsonb->>'scope' is null or n.scope::text = $3::jsonb->>'scope')
           and ($3::jsonb->>'type' is null or n.type::text = $3::jsonb->>'type')
           and ($3::jsonb->>'key' is null or n.key::text = $3::jsonb->>'key')
           and ($3::jsonb->>'status' is null or n.status::text = $3::jsonb->>'status')
           and ($3::jsonb->>'updated_after' is null
                or n.updated_at >= ($3::jsonb->>'updated_after')::timestamptz)
           and ($3::jsonb->>'updated_before' is null
                or n.updated_at < ($3::jsonb->>'updated_before')::timestamptz)
           and ($3::jsonb->>'min_importance' is null
            or case when abs(n.importance) between 1e-37 and 1e37 then n.importance else 0 end
               >= ($3::jsonb->>'min_importance')::real)
        offset 0) n
