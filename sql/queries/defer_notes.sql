-- Leaves notes alone for a moment: leased to no worker.
-- $1 version, $2 token, $3 note ids, $4 seconds
update note_index_state s
   set lease_until = now() + make_interval(secs => $4), holder = null
  from (select note_id from note_index_state
         where note_id = any ($3) and embedding_version = $1 and lease_token = $2
           and lease_until is not null
         order by note_id for update) held
 where s.note_id = held.note_id and s.embedding_version = $1
