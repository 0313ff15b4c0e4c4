-- The vectors of the chunks next to some ids, one a note.
-- $1 version, $2 ids
select distinct on (c.note_id) e.vec::vector as "vec!: pgvector::Vector"
  from pg_catalog.unnest($2::uuid[]) as u (at)
 cross join lateral (
        select e.chunk_id, e.vec
          from note_chunk_embeddings e
         where e.chunk_id >= u.at and e.embedding_version = $1
         order by e.chunk_id
         limit 1) e
  join memory_note_chunks c on c.chunk_id = e.chunk_id and c.embedding_version = $1
