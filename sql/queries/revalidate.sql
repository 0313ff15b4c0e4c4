-- Those of these chunks that belong to a live note with the requested labels. A point that a crash
-- left behind has no such chunk, and the note of a point with old labels has other labels now.
-- $1 version, $2 chunk ids, $3 what the note must be like, by name
select c.chunk_id as "chunk_id!", c.note_id as "note_id!", c.chunk_index as "chunk_index!",
       c.start_offset as "start_offset!", c.end_offset as "end_offset!", c.text as "text!",
       n.key as "key?", n.title as "title?", n.importance as "importance!", n.updated_secs as "updated_secs!",
       coalesce((select s.revision
                   from note_index_state s
                  where s.note_id = c.note_id and s.embedding_version = c.embedding_version),
                c.revision) as "revision!"
  from pg_catalog.unnest($2::uuid[]) as u (chunk_id)
 cross join lateral (
        select *
          from memory_note_chunks c
         where c.chunk_id = u.chunk_id
           and c.embedding_version is not distinct from $1
        offset 0) c
 cross join lateral (
        select n.key::text as key,
               elf_title(n.title::text) as title,
               elf_number(n.importance) as importance,
               -- Seconds, because an application may write 'infinity'.
               extract(epoch from coalesce(n.updated_at, 'epoch'))::float8 as updated_secs
          from memory_notes n
         where n.note_id = c.note_id
           and elf_is_like(n, $3)
        offset 0) n
