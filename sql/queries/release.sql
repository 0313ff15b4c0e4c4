-- Gives leases back unused: the outbox rows stay as they are, and due.
-- $1 version, $2 token, $3 note ids
with held as materialized (
    select s.note_id
      from note_index_state s
     where s.note_id = any ($3) and s.embedding_version = $1 and s.lease_token = $2
     order by s.note_id
       for update
)
update note_index_state s
   set lease_until = null, holder = null
 where exists (select from held)
   and s.note_id = any ($3) and s.embedding_version = $1 and s.lease_token = $2
