-- Records the access labels that the points of these notes have now. See lock_notes.sql for
-- `= any`.
-- $1 version, $2 token, $3 note ids, $4 hashes of the access labels
update note_index_state s
   set access_sha256 = ($4::bytea[])[array_position($3::uuid[], s.note_id)]
 where s.note_id = any ($3) and s.embedding_version = $1 and s.lease_token = $2
