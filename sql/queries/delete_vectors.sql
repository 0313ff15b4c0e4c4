-- The array comes from a subquery, so that Postgres plans for few rows and takes the index.
-- $1 version, $2 chunk ids
delete from note_chunk_embeddings
 where embedding_version is not distinct from $1 -- see chunk_page.sql
   and chunk_id = any (array(select unnest($2::uuid[])))
