-- A retry is a new request: how long it takes is measured from now.
-- $1 outbox or note ids, null for all
with retried as (
    update indexing_outbox
       set status = 'PENDING', attempts = 0, available_at = now(), created_at = now(),
           updated_at = now()
     where status = 'DEAD' and ($1::uuid[] is null or outbox_id = any ($1) or note_id = any ($1))
    returning note_id
),
forgiven as (
    update note_index_state s
       set failures = 0
      from (select distinct note_id from retried) r
     where s.note_id = r.note_id
)
select count(*) as "retried!" from retried
