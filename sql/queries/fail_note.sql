-- One failure of a note, unless its lease is over already: its newest row carries the count and the reason, the
-- others say nothing that it does not.
-- $1 version, $2 token, $3 note id, $4 outbox ids (the newest last), $5 reason,
-- $6 seconds until the retry, null for a dead letter
with held as (
    select s.note_id
      from note_index_state s
     where s.note_id = $3 and s.embedding_version = $1 and s.lease_token = $2
       and s.lease_until is not null
       for update
),
released as (
    update note_index_state s
       set lease_until = null, holder = null
      from held h
     where s.note_id = h.note_id and s.embedding_version = $1
),
others as (
    delete from indexing_outbox o using held h
     where o.outbox_id = any ($4) and o.outbox_id <> ($4)[cardinality($4)]
)
update indexing_outbox o
   set status = case when $6::double precision is null then 'DEAD' else 'FAILED' end,
       attempts = o.attempts + 1,
       last_error = $5,
       available_at = now() + make_interval(secs => coalesce($6, 0)),
       updated_at = now()
  from held h
 where o.outbox_id = ($4)[cardinality($4)]
