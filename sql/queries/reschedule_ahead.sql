-- Reads a page of the outbox rows that are not due, in the order in which they will be. Reschedules those
-- that were written later than now: before the clock of Postgres went back. They get the pause that
-- they had: none, or that of a retry. A time that an application has set, in a row without a version, stays.
-- $1 version, $2 and $3 only rows after this one (available_at, outbox_id), null from now on,
-- $4 rows at most
with me as materialized (
    select v.state = 'active' as is_active
      from index_versions v
     where v.embedding_version = $1 and v.state in ('active', 'building')
),
-- The two scans leave out 'infinity', which no Rust timestamp can hold.
page as materialized (
    select u.outbox_id, u.available_at
      from ((select o.outbox_id, o.available_at
               from indexing_outbox o
              where o.embedding_version = $1
                and exists (select from me)
                and o.status in ('PENDING', 'FAILED')
                and (o.available_at, o.outbox_id)
                    > (coalesce($2, now()), coalesce($3, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid))
                and o.available_at < now() + interval '10 years'
              order by o.available_at, o.outbox_id
              limit $4)
            union all
            (select o.outbox_id, o.available_at
               from indexing_outbox o
              where o.embedding_version is null
                and (select is_active from me)
                and o.status in ('PENDING', 'FAILED')
                and (o.available_at, o.outbox_id)
                    > (coalesce($2, now()), coalesce($3, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid))
                and o.available_at < now() + interval '10 years'
              order by o.embedding_version, o.available_at, o.outbox_id
              limit $4)) u
     order by u.available_at, u.outbox_id
     limit $4
),
ahead as materialized (
    select o.outbox_id
      from indexing_outbox o
     where o.outbox_id = any (array(select p.outbox_id from page p))
       and case when o.status = 'FAILED' then o.updated_at > clock_timestamp()
                else o.created_at > clock_timestamp()
                     and (o.embedding_version is not null or o.available_at <= o.created_at) end
       for update skip locked
),
rescheduled as (
    update indexing_outbox o
       set available_at = now() + greatest(
               o.available_at - case when o.status = 'FAILED' then o.updated_at else o.created_at end,
               interval '0'),
           created_at = least(o.created_at, now()),
           updated_at = now()
     where o.outbox_id = any (array(select a.outbox_id from ahead a))
    returning o.outbox_id
)
select p.available_at as "due!", p.outbox_id as "last!",
       (select count(*) from rescheduled) as "rescheduled!"
  from page p
 order by p.available_at desc, p.outbox_id desc
 limit 1
