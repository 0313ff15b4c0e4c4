-- A row counts as leased when its note is. One pass over what is not done.
-- $1 version, null for any
with leased as materialized (
    select distinct s.note_id
      from note_index_state s
     where s.lease_until > now() and ($1::text is null or s.embedding_version = $1)
)
select count(*) filter (where o.status = 'PENDING' and l.note_id is null) as "pending!",
       count(*) filter (where o.status in ('PENDING', 'FAILED') and l.note_id is not null) as "leased!",
       count(*) filter (where o.status = 'FAILED' and l.note_id is null) as "failed!",
       count(*) filter (where o.status = 'DEAD') as "dead!",
       extract(epoch from now() - min(o.created_at)
               filter (where o.status in ('PENDING', 'FAILED') and o.available_at <= now()))::double precision
           as oldest_pending_secs
  from indexing_outbox o
  left join leased l on l.note_id = o.note_id
 where o.status <> 'DONE'
