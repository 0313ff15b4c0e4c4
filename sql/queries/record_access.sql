-- The points of these notes have these access labels now.
-- $1 version, $2 token, $3 note ids, $4 hashes of the access labels
update note_index_state s
   set access_sha256 = u.access_sha256
  from unnest($3::uuid[], $4::bytea[]) as u (note_id, access_sha256)
 where s.note_id = u.note_id and s.embedding_version = $1 and s.lease_token = $2
