-- $1 version, $2 seconds between two sweeps
update index_versions
   set swept_at = now()
 where embedding_version = $1 and state = 'active'
   and coalesce(swept_at, created_at) <= now() - make_interval(secs => $2)
