-- Those of these chunks that belong to live notes.
-- $1 version, $2 chunk ids
select c.chunk_id as "chunk_id!", c.note_id as "note_id!", c.chunk_index as "chunk_index!",
       c.start_offset as "start_offset!", c.end_offset as "end_offset!",
       coalesce((select s.revision
                   from note_index_state s
                  where s.note_id = c.note_id and s.embedding_version = c.embedding_version),
                c.revision) as "revision!", c.lead as "lead?", c.text as "text!",
       e.chunk_id is not null as "has_vector!", c.awaits_vector as "awaits_vector!",
       e.vec::vector as "vec?: pgvector::Vector",
       n.status as "status!", n.expires_at, n.tenant_id as "tenant_id!", n.project_id as "project_id!",
       n.agent_id as "agent_id!", n.scope as "scope!", n.kind as "kind!", n.key, n.source,
       n.importance as "importance!", n.confidence as "confidence!", n.updated_at as "updated_at!",
       elf_metadata(n.metadata) as metadata
  from pg_catalog.unnest($2::uuid[]) as u (chunk_id)
 cross join lateral elf_chunk(u.chunk_id, $1) c
 cross join lateral elf_note(c.note_id) n
  left join lateral elf_vector(c.chunk_id, c.embedding_version) e on true
 where n.is_live
 order by c.chunk_id
