-- $1 version, $2 chunk ids
delete from note_chunk_embeddings
 where chunk_id = any ($2)
   and embedding_version is not distinct from $1 -- see chunk_page.sql
