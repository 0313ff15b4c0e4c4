-- Releases leases: the outbox rows stay as they are, and due. Returns the notes whose lease was
-- still that of the token.
-- $1 version, $2 token, $3 note ids, $4 whether the worker survived the notes: then their lost
-- claims are no longer in a row, and the count goes back to 0
with held as materialized (
    select s.note_id
      from note_index_state s
     where s.note_id = any ($3) and s.embedding_version = $1 and s.lease_token = $2
     order by s.note_id
       for update
)
update note_index_state s
   set lease_until = null, holder = null,
       claims_lost = case when $4 then 0 else s.claims_lost end
 where (select count(*) from held) > 0
   and s.note_id = any ($3) and s.embedding_version = $1 and s.lease_token = $2
returning s.note_id
