-- One vector for each text that was embedded before, in any note and under any version of the same vector space.
-- $1 version, $2 text hashes
select u.hash as "text_sha256!", e.vec::vector as "vec!: pgvector::Vector"
  from index_versions v
 cross join pg_catalog.unnest($2::bytea[]) as u (hash)
 cross join lateral elf_known_vector(v.vector_space, u.hash) e
 where v.embedding_version = $1
