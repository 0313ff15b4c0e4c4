-- Deletes the chunks after the last one of each note: its old text had more.
-- $1 version, $2 note ids, $3 chunk counts
delete from memory_note_chunks
 where embedding_version is not distinct from $1 -- see chunk_page.sql
   and chunk_id = any (array(
        select c.chunk_id
          from unnest($2::uuid[], $3::int[]) as u (note_id, chunk_count)
         cross join lateral (
                select c.chunk_id
                  from memory_note_chunks c
                 where c.note_id = u.note_id and c.chunk_index >= u.chunk_count
                   and c.embedding_version is not distinct from $1
                offset 0) c))
