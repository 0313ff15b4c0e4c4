-- What the chunks of these notes say now, where their vectors are at hand.
-- $1 version, $2 note ids
select c.chunk_id, c.text_sha256
  from memory_note_chunks c
  join note_chunk_embeddings e using (chunk_id, embedding_version)
 where c.note_id = any ($2) and c.embedding_version is not distinct from $1 -- see chunk_page.sql
