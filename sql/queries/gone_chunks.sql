-- Those of these chunks that must not have a point: they are deleted, or their note is not live.
-- A chunk with a higher revision still exists; the worker that wrote it writes its point.
-- $1 version, $2 chunk ids
select u.chunk_id as "chunk_id!"
  from pg_catalog.unnest($2::uuid[]) as u (chunk_id)
 where (select (select elf_is_live(n)
                  from memory_notes n
                 where n.note_id = c.note_id)
          from elf_chunk(u.chunk_id, $1) c) is not true
