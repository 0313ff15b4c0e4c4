-- $1 holder, $2 lease seconds, $3 points or notes done, $4 points or notes in total
update index_job
   set lease_until = now() + make_interval(secs => $2), done = $3, total = $4
 where holder = $1
