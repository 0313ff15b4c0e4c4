-- $1 version, $2 the number of the verify: another one goes on
update index_versions
   set sweep_chunks_upto = null, sweep_notes_upto = null, sweep_until = null
 where embedding_version = $1 and sweep_number = $2
