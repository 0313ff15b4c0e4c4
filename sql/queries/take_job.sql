-- Takes the one job if no process holds it. Returns the job that runs now. A step of the job locks its
-- row: until that has ended, an expired lease is not free.
-- $1 kind, $2 subject, $3 holder, $4 lease seconds
with expired as materialized (
    select from index_job
     where elf_is_free(lease_until, $4)
       for update skip locked
),
taken as (
    insert into index_job as j (kind, subject, holder, lease_until)
    select $1, $2, $3, now() + make_interval(secs => $4)
     where exists (select from expired) or not exists (select from index_job)
    on conflict (singleton) do update
       set kind = excluded.kind, subject = excluded.subject, holder = excluded.holder,
           started_at = now(), lease_until = excluded.lease_until, done = 0, total = 0
     where elf_is_free(j.lease_until, $4)
    returning *
)
select kind as "kind!", subject as "subject!", holder as "holder!", started_at as "started_at!",
       lease_until as "lease_until!", done as "done!", total as "total!"
  from taken
 union all
select kind, subject, holder, started_at, lease_until, done, total
  from index_job
 where not exists (select from taken)
