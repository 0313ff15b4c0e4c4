-- Renews leases, except those that a commit of this worker has locked: while it hangs, no worker can claim
-- these notes, and to wait for it would take one more connection each time.
-- $1 version, $2 token, $3 note ids, $4 lease seconds
with held as materialized (
    select s.note_id
      from note_index_state s
     where s.note_id = any ($3) and s.embedding_version = $1 and s.lease_token = $2
       and s.lease_until is not null
       -- A renewal that waited for a connection may come after the lease was ended with a pause.
       and s.holder is not null
     order by s.note_id
       for update skip locked
)
update note_index_state s
   set leased_at = now(), lease_until = now() + make_interval(secs => $4)
 where s.note_id = any (array(select h.note_id from held h)) and s.embedding_version = $1
