-- A retry is a new request, so `created_at` and with it the measured delay begin now. States are
-- locked before outbox rows. Skips a locked row: another transaction is acking or
-- purging it.
-- $1 outbox or note ids, null for all
with letters as materialized (
    select o.outbox_id, o.note_id
      from indexing_outbox o
     where o.status = 'DEAD' and ($1::uuid[] is null or o.outbox_id = any ($1) or o.note_id = any ($1))
),
states as materialized (
    select s.note_id
      from note_index_state s
     where s.note_id = any (array(select l.note_id from letters l))
     order by s.note_id, s.embedding_version
       for update
),
due as materialized (
    select o.outbox_id
      from indexing_outbox o
     where (select count(*) from states) >= 0
       and o.outbox_id = any (array(select l.outbox_id from letters l))
       and o.status = 'DEAD'
       for update skip locked
),
retried as (
    update indexing_outbox
       set status = 'PENDING', attempts = 0, available_at = now(), created_at = now(),
           updated_at = now()
     where outbox_id = any (array(select d.outbox_id from due d))
    returning note_id
),
forgiven as (
    update note_index_state s
       set failures = 0
     where s.note_id = any (array(select r.note_id from retried r))
)
select count(*) as "retried!" from retried
