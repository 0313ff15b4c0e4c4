-- $1 version
update index_versions
   set sweep_chunks_upto = null, sweep_notes_upto = null, sweep_until = null
 where embedding_version = $1
