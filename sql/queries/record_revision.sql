-- $1 version, $2 token, $3 note ids, $4 text hashes, $5 chunk counts
update note_index_state s
   set revision = $2, text_sha256 = u.text_sha256, chunk_count = u.chunk_count,
       failures = 0, failed_sha256 = null
  from unnest($3::uuid[], $4::bytea[], $5::int[]) as u (note_id, text_sha256, chunk_count)
 where s.note_id = u.note_id and s.embedding_version = $1 and s.lease_token = $2
