-- A row without a version belongs to the active one. A row counts as leased when a worker has its
-- note. A note that is held without a holder is paused: no worker claims it before that ends.
-- The query starts from the waiting rows and looks up their leases, because they are fewer than
-- the notes.
-- $1 version, null for all that are not retired
with waiting as (
    select o.note_id, o.status, o.created_at, o.available_at,
           coalesce(o.embedding_version,
                    (select v.embedding_version from index_versions v where v.state = 'active')) as embedding_version
      from indexing_outbox o
     where o.status <> 'DONE'
)
select count(*) filter (where o.status = 'PENDING' and l.by_worker is not true) as "pending!",
       count(*) filter (where o.status in ('PENDING', 'FAILED') and l.by_worker) as "leased!",
       count(*) filter (where o.status = 'FAILED' and l.by_worker is not true) as "failed!",
       count(*) filter (where o.status = 'DEAD') as "dead!",
       count(*) filter (where o.status in ('PENDING', 'FAILED') and not l.by_worker) as "paused!",
       -- A row that an application scheduled for later waits since it was due.
       extract(epoch from now() - min(case when o.status = 'PENDING'
                                           then greatest(o.created_at, o.available_at)
                                           else o.created_at end)
               filter (where o.status in ('PENDING', 'FAILED') and o.available_at <= now()))::double precision
           as oldest_pending_secs
  from waiting o
  left join lateral (
        select s.holder is not null as by_worker
          from note_index_state s
         where s.note_id = o.note_id and s.embedding_version = o.embedding_version
           and elf_is_leased(s)
        offset 0) l on true
 where o.embedding_version = $1
    or ($1::text is null
        -- Workers do nothing for a retired version.
        and not exists (select from index_versions v
                         where v.embedding_version = o.embedding_version and v.state = 'retired'))
