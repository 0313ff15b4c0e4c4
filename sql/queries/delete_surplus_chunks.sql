-- Chunks behind the last one of a note that became shorter.
-- $1 version, $2 note ids, $3 chunk counts
delete from memory_note_chunks c
 using unnest($2::uuid[], $3::int[]) as n (note_id, chunk_count)
 where c.note_id = n.note_id and c.chunk_index >= n.chunk_count
   and c.embedding_version is not distinct from $1 -- see chunk_page.sql
