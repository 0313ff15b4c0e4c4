-- The vectors of these chunks.
-- $1 version, $2 chunk ids
select e.chunk_id as "chunk_id!", e.vec::vector as "vec!: pgvector::Vector"
  from pg_catalog.unnest($2::uuid[]) as u (chunk_id)
 cross join lateral elf_vector(u.chunk_id, $1) e
