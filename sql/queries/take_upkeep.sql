-- Takes or renews the lease on the upkeep of a version. The worker that has it enqueues expired
-- notes, counts and cleans up.
-- $1 version, $2 holder, $3 lease seconds
update index_versions
   set upkeep_holder = $2, upkeep_until = now() + make_interval(secs => $3)
 where embedding_version = $1
   and (upkeep_holder = $2 or coalesce(upkeep_until <= now(), true))
