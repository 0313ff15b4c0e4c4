-- The canary that began last, of a version that is still built.
select c.embedding_version, c.share, c.ended, c.tallies, c.started_at
  from index_canary c
  join index_versions v using (embedding_version)
 where v.state = 'building'
 order by c.started_at desc
 limit 1
