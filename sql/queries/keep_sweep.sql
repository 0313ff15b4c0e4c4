-- Records how far a worker's own verify has come, and that its worker lives.
-- $1 version, $2 chunks up to this, $3 notes up to this, $4 lease seconds,
-- $5 the number of the verify: nothing is recorded once another has gone on with it
update index_versions
   set sweep_chunks_upto = $2, sweep_notes_upto = $3,
       sweep_until = now() + make_interval(secs => $4)
 where embedding_version = $1 and sweep_chunks_upto is not null and sweep_number = $5
