-- Counts a failed attempt of a note, unless its lease was lost. One of the claimed outbox rows gets the
-- count and the reason; the others are deleted. Any will do: the attempt came after all of them.
-- $1 version, $2 token, $3 note id, $4 outbox ids (the newest last), $5 reason,
-- $6 seconds until the retry, null for a dead letter, $7 failures of this text so far,
-- $8 the hash of the text, $9 what rejected it, $10 the new number of lost claims,
-- $11 seconds for which no worker claims the note: the index may still apply an upsert of it
with held as (
    update note_index_state s
       set lease_until = case when $11::float8 > 0::float8 then now() + make_interval(secs => $11) end,
           leased_at = now(), holder = null, failures = $7, failed_sha256 = $8,
           claims_lost = $10
     where s.note_id = $3 and s.embedding_version = $1 and s.lease_token = $2
       and s.lease_until is not null
    returning s.note_id
),
failed as (
    update indexing_outbox o
       set status = case when $6::double precision is null then 'DEAD' else 'FAILED' end,
           attempts = $7,
           last_error = $5,
           failed_by = $9,
           available_at = now() + make_interval(secs => coalesce($6, 0)),
           updated_at = now()
      from held h
     where o.outbox_id = ($4::uuid[])[pg_catalog.cardinality($4::uuid[])]
    returning o.outbox_id
),
-- Only if the newest row still exists.
others as (
    delete from indexing_outbox o using failed f
     where o.outbox_id = any ($4::uuid[]) and o.outbox_id <> f.outbox_id
)
select count(*) > 0 as "counted!" from held
