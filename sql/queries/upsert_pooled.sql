-- $1 version, $2 dimension, $3 note ids, $4 vectors
insert into note_embeddings (embedding_version, embedding_dim, note_id, vec)
select $1, $2, u.note_id, u.vec
  from unnest($3::uuid[], $4::vector[]) as u (note_id, vec)
on conflict (note_id, embedding_version) do update
   set vec = excluded.vec, embedding_dim = excluded.embedding_dim, updated_at = now()
