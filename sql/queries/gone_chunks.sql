-- Those of these chunks that are no point's any more: cut away, or of a note that is
-- not live. A chunk that is there under a higher revision is its worker's to write.
-- Scalar subqueries look up one row each; a join may read a whole table for each chunk.
-- $1 version, $2 chunk ids
select u.chunk_id as "chunk_id!"
  from unnest($2::uuid[]) as u (chunk_id)
 where (select (select n.status = 'active' and (n.expires_at is null or n.expires_at > now())
                  from memory_notes n
                 where n.note_id = c.note_id)
          from memory_note_chunks c
         where c.chunk_id = u.chunk_id
           and c.embedding_version is not distinct from $1 -- see chunk_page.sql
       ) is not true
