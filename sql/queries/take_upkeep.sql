-- Of all workers of a version one sweeps, counts and cleans up: whoever has this lease.
-- $1 version, $2 holder, $3 lease seconds
update index_versions
   set upkeep_holder = $2, upkeep_until = now() + make_interval(secs => $3)
 where embedding_version = $1
   and (upkeep_holder = $2 or coalesce(upkeep_until <= now(), true))
