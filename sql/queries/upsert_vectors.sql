-- $1 version, $2 dimension, $3 chunk ids, $4 vectors
insert into note_chunk_embeddings (embedding_version, embedding_dim, chunk_id, vec)
select $1, $2, u.chunk_id, u.vec
  from unnest($3::uuid[], $4::vector[]) as u (chunk_id, vec)
on conflict (chunk_id, embedding_version) do update
   set vec = excluded.vec, embedding_dim = excluded.embedding_dim, created_at = now()
