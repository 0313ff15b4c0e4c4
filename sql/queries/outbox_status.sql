-- A row counts as leased when its note is. One pass over what is not done.
-- $1 version, null for any
select count(*) filter (where o.status = 'PENDING' and not leased.is) as "pending!",
       count(*) filter (where o.status in ('PENDING', 'FAILED') and leased.is) as "leased!",
       count(*) filter (where o.status = 'FAILED' and not leased.is) as "failed!",
       count(*) filter (where o.status = 'DEAD') as "dead!",
       extract(epoch from now() - min(o.created_at)
               filter (where o.status in ('PENDING', 'FAILED')))::double precision
           as oldest_pending_secs
  from indexing_outbox o
 cross join lateral (
        select exists (select from note_index_state s
                        where s.note_id = o.note_id
                          and ($1::text is null or s.embedding_version = $1)
                          and s.lease_until > now()) as is) leased
 where o.status <> 'DONE'
