-- Ends the leases that are still ours and settles exactly the claimed rows of
-- those notes. The state of a note that is gone goes with it.
-- $1 version, $2 token, $3 note ids, $4 outbox ids, $5 the note of each outbox id,
-- $6 whether done rows are kept, $7 the hash of the access labels that the points of each
-- note of $3 have now, null where it has none
with held as (
    select s.note_id
      from note_index_state s
     where s.note_id = any ($3) and s.embedding_version = $1 and s.lease_token = $2
     order by s.note_id
       for update
),
released as (
    update note_index_state s
       set lease_until = null, holder = null, indexed_at = now(), claims_lost = 0,
           access_sha256 = a.access_sha256
      from held h
      join unnest($3::uuid[], $7::bytea[]) as a (note_id, access_sha256) using (note_id)
     where s.note_id = h.note_id and s.embedding_version = $1
),
rows as (
    select u.outbox_id
      from unnest($4::uuid[], $5::uuid[]) as u (outbox_id, note_id)
      join held h using (note_id)
),
deleted as (
    delete from indexing_outbox o using rows r where o.outbox_id = r.outbox_id and not $6
),
kept as (
    update indexing_outbox o
       set status = 'DONE', last_error = null, updated_at = now()
      from rows r
     where o.outbox_id = r.outbox_id and $6
)
select note_id from held
