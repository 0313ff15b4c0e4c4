-- Ends leases. The outbox rows stay, and are due after the pause: until then no worker holds or claims the notes.
-- No attempt is counted, and no lost claim. Returns the notes whose lease was still that of the token.
-- $1 version, $2 token, $3 note ids, $4 seconds of the pause, $5 whether the worker survived the notes: then their
-- lost claims are no longer in a row, and the count goes back to 0
with held as materialized (
    select s.note_id
      from note_index_state s
     where s.note_id = any ($3) and s.embedding_version = $1 and s.lease_token = $2
       and s.lease_until is not null
     order by s.note_id
       for update
)
update note_index_state s
   set leased_at = now(), lease_until = case when $4 > 0::float8 then now() + make_interval(secs => $4) end,
       holder = null,
       claims_lost = case when $5 then 0 else s.claims_lost end
 where s.note_id = any (array(select h.note_id from held h)) and s.embedding_version = $1
returning s.note_id
