-- Takes or renews the lease on the upkeep of a version. The worker that has it enqueues expired
-- notes, counts and cleans up. If the lease is another worker's, nothing is written or locked.
-- A lease that ends after more than two of them was taken before the clock went back.
-- $1 version, $2 holder, $3 lease seconds
with renewed as (
    update index_upkeep
       set holder = $2, lease_until = now() + make_interval(secs => $3)
     where embedding_version = $1
       and (holder = $2 or lease_until <= now() or lease_until > now() + make_interval(secs => 2::float8 * $3))
    returning holder
),
first as (
    insert into index_upkeep (embedding_version, holder, lease_until)
    select v.embedding_version, $2, now() + make_interval(secs => $3)
      from index_versions v
     where v.embedding_version = $1
       and not exists (select from index_upkeep u where u.embedding_version = $1)
    on conflict do nothing
    returning holder
)
select holder from renewed
 union all
select holder from first
