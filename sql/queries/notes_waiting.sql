-- How many of these notes no worker has brought into step yet, and how many are dead-lettered.
-- A scheduled row is not due and does not count.
-- $1 note ids, $2 version
select count(distinct o.note_id) filter (
           where o.status = 'PENDING' and o.available_at <= now() or o.status = 'FAILED')
           as "waiting!",
       count(distinct o.note_id) filter (where o.status = 'DEAD') as "dead!"
  from indexing_outbox o
 where o.note_id = any ($1)
   and o.status in ('PENDING', 'FAILED', 'DEAD')
   and (o.embedding_version = $2 or o.embedding_version is null)
