-- Records the progress of a worker's own verify, and renews its lease.
-- $1 version, $2 chunks up to this, $3 notes up to this, $4 lease seconds,
-- $5 the number of the verify; nothing changes if another worker has resumed it
update index_versions
   set verify_chunks_cursor = $2, verify_notes_cursor = $3,
       verify_lease_until = now() + make_interval(secs => $4)
 where embedding_version = $1 and verify_chunks_cursor is not null and verify_number = $5
