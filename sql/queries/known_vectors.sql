-- One vector for each text that was embedded before, in any note and under any version of the same
-- vector space.
-- For each text and version Postgres reads one row of the index on both, even if many chunks have
-- that text. Chunks that have a vector come first.
-- $1 version, $2 text hashes
select found.text_sha256 as "text_sha256!", found.vec as "vec!: pgvector::Vector"
  from pg_catalog.unnest($2::bytea[]) as u (hash)
 cross join lateral (
        select c.text_sha256,
               (select e.vec::vector
                  from note_chunk_embeddings e
                 where e.chunk_id = c.chunk_id and e.embedding_version = c.embedding_version) as vec
          from index_versions v
          join index_versions same using (vector_space)
         cross join lateral (
                select c.chunk_id, c.embedding_version, c.text_sha256
                  from memory_note_chunks c
                 where c.embedding_version = same.embedding_version
                   and (c.text_sha256, c.awaits_vector) >= (u.hash, false)
                 order by c.text_sha256, c.awaits_vector
                 limit 1) c
         where v.embedding_version = $1 and c.text_sha256 = u.hash
         limit 1) found
 where found.vec is not null
