-- Defers notes: they stay leased for a time, but without a holder, so that no worker claims them
-- and no lost claim is counted. Returns the notes whose lease was still that of the token. See lock_notes.sql for `= any`.
-- $1 version, $2 token, $3 note ids, $4 seconds
with held as materialized (
    select note_id from note_index_state
     where note_id = any ($3) and embedding_version = $1 and lease_token = $2
       and lease_until is not null
     order by note_id
       for update
)
update note_index_state s
   set leased_at = now(), lease_until = now() + make_interval(secs => $4), holder = null
 where (select count(*) from held) > 0
   and s.note_id = any ($3) and s.embedding_version = $1 and s.lease_token = $2
   and s.lease_until is not null
returning s.note_id
