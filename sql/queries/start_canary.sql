-- Begins a canary anew, unless the version is no longer built. $1 version, $2 share, $3 empty tallies
insert into index_canary as c (embedding_version, share, tallies)
select v.embedding_version, $2, $3
  from index_versions v
 where v.embedding_version = $1 and v.state = 'building'
    on conflict (embedding_version) do update
   set share = excluded.share, tallies = excluded.tallies, ended = null, started_at = now()
