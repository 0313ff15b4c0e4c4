-- Takes or renews the lease on the upkeep of a version. The worker that has it enqueues expired
-- notes, counts and cleans up. If the lease is another worker's, nothing is written or locked.
-- $1 version, $2 holder, $3 lease seconds
insert into index_upkeep as u (embedding_version, holder, lease_until)
select v.embedding_version, $2, now() + make_interval(secs => $3)
  from index_versions v
 where v.embedding_version = $1
   and not exists (select from index_upkeep u
                    where u.embedding_version = $1 and u.holder <> $2
                      and not elf_is_free(u.lease_until, $3))
on conflict (embedding_version) do update
   set holder = excluded.holder, lease_until = excluded.lease_until
 where u.holder = $2 or elf_is_free(u.lease_until, $3)
returning u.holder
