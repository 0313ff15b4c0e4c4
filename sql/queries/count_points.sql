-- $1 version
select count(*) as "count!"
  from memory_note_chunks c
  join memory_notes n on n.note_id = c.note_id
  join note_chunk_embeddings e
    on e.chunk_id = c.chunk_id and e.embedding_version = c.embedding_version
 where c.embedding_version = $1
   and n.status = 'active' and (n.expires_at is null or n.expires_at > now())
