-- Until the vector engine has answered, points may have the access labels from before:
-- unless those are the same, nothing is known of them.
-- $1 version, $2 token, $3 note ids, $4 text hashes, $5 chunk counts, $6 hashes of the
-- access labels
update note_index_state s
   set revision = $2, text_sha256 = u.text_sha256, chunk_count = u.chunk_count,
       access_sha256 = case when s.access_sha256 = u.access_sha256 then s.access_sha256 end,
       failures = 0, failed_sha256 = null
  from unnest($3::uuid[], $4::bytea[], $5::int[], $6::bytea[])
       as u (note_id, text_sha256, chunk_count, access_sha256)
 where s.note_id = u.note_id and s.embedding_version = $1 and s.lease_token = $2
