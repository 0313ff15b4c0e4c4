-- The text hashes of those of these chunks that have a vector.
-- $1 version, $2 chunk ids
select c.chunk_id as "chunk_id!", c.text_sha256 as "text_sha256!"
  from unnest($2::uuid[]) as u (chunk_id)
 cross join lateral (
        select c.chunk_id, c.text_sha256,
               (select true
                  from note_chunk_embeddings e
                 where e.chunk_id = c.chunk_id
                   and e.embedding_version is not distinct from $1) as has_vector
          from memory_note_chunks c
         where c.chunk_id = u.chunk_id
           and c.embedding_version is not distinct from $1 -- see chunk_page.sql
         limit 1) c
 where c.has_vector
