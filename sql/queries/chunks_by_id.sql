-- Those of these chunks that belong to live notes. See revalidate.sql for `offset 0`.
-- $1 version, $2 chunk ids
select c.chunk_id as "chunk_id!", c.note_id as "note_id!", c.chunk_index as "chunk_index!",
       c.start_offset as "start_offset!", c.end_offset as "end_offset!",
       coalesce((select s.revision
                   from note_index_state s
                  where s.note_id = c.note_id and s.embedding_version = c.embedding_version),
                c.revision) as "revision!", c.text as "text!",
       e.chunk_id is not null as "has_vector!", c.awaits_vector as "awaits_vector!",
       e.vec::vector as "vec?: pgvector::Vector",
       coalesce(n.status, '') as "status!",
       case when n.expires_at is not null
            then least(greatest(n.expires_at, '0001-01-01 00:00+00'), '9999-12-31 00:00+00')
        end as expires_at,
       coalesce(n.tenant_id::text, '') as "tenant_id!",
       coalesce(n.project_id::text, '') as "project_id!",
       coalesce(n.agent_id::text, '') as "agent_id!",
       coalesce(n.scope::text, '') as "scope!",
       coalesce(n.type::text, '') as "kind!",
       n.key::text as key,
       (case when abs(n.importance) between 1e-37 and 1e37 then n.importance else 0 end)::real
           as "importance!",
       (case when abs(n.confidence) between 1e-37 and 1e37 then n.confidence else 0 end)::real
           as "confidence!",
       least(greatest(coalesce(n.updated_at, 'epoch'), '0001-01-01 00:00+00'), '9999-12-31 00:00+00')
           as "updated_at!"
  from unnest($2::uuid[]) as u (chunk_id)
 cross join lateral (
        select *
          from memory_note_chunks c
         where c.chunk_id = u.chunk_id
           and c.embedding_version is not distinct from $1 -- see chunk_page.sql
        offset 0) c
 cross join lateral (
        select *
          from memory_notes n
         where n.note_id = c.note_id
           and n.status = 'active' and (n.expires_at is null or n.expires_at > now())
        offset 0) n
  left join lateral (
        select e.chunk_id, e.vec
          from note_chunk_embeddings e
         where e.chunk_id = c.chunk_id and e.embedding_version = c.embedding_version
        offset 0) e on true
 order by c.chunk_id
