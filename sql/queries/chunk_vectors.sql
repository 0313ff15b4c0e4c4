-- The vectors of these chunks.
-- $1 version, $2 chunk ids
select e.chunk_id as "chunk_id!", e.vec::vector as "vec!: pgvector::Vector"
  from pg_catalog.unnest($2::uuid[]) as u (chunk_id)
 cross join lateral (
        select *
          from note_chunk_embeddings e
         where e.chunk_id = u.chunk_id and e.embedding_version = $1
        offset 0) e
