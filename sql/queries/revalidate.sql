-- Those of these chunks that belong to a live note with the requested labels. A point that a crash
-- left behind has no such chunk, and the note of a point with old labels has other labels now.
-- $1 version, $2 chunk ids, $3 what the note must be like, by name
select c.chunk_id as "chunk_id!", c.note_id as "note_id!", c.chunk_index as "chunk_index!",
       c.start_offset as "start_offset!", c.end_offset as "end_offset!", c.text as "text!",
       n.key as "key?", n.title as "title?", n.source as "source?", n.source_id as "source_id?",
       n.project_id as "project_id!", n.agent_id as "agent_id!", n.scope as "scope!", n.kind as "kind!",
       n.updated_at as "updated_at!", n.metadata as "metadata!: Shown", n.source_ref as "source_ref!: Shown", n.importance as "importance!",
       coalesce((select s.revision
                   from note_index_state s
                  where s.note_id = c.note_id and s.embedding_version = c.embedding_version),
                c.revision) as "revision!"
  from pg_catalog.unnest($2::uuid[]) as u (chunk_id)
 cross join lateral elf_chunk(u.chunk_id, $1) c
 cross join lateral (
        select n.key::text as key,
               elf_title(n.title::text) as title, n.source::text as source, n.source_id::text as source_id,
               coalesce(n.project_id::text, '') as project_id, coalesce(n.agent_id::text, '') as agent_id,
               coalesce(n.scope::text, '') as scope, coalesce(n.type::text, '') as kind,
               elf_time(coalesce(n.updated_at, 'epoch')) as updated_at,
               elf_shown(n.metadata) as metadata, elf_shown(n.source_ref) as source_ref,
               elf_number(n.importance) as importance
          from memory_notes n
         where n.note_id = c.note_id
           and elf_is_like(n, $3)
        offset 0) n
