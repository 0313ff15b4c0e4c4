-- $1 version, $2 the number of the verify; nothing changes if another worker has resumed it
update index_versions
   set verify_chunks_cursor = null, verify_notes_cursor = null, verify_lease_until = null
 where embedding_version = $1 and verify_number = $2
