-- Deletes notes that an evaluation wrote.
-- $1 tenant, $2 the agent of evaluations, $3 keys of notes to keep
delete from memory_notes
 where tenant_id::text = $1 and agent_id::text = $2
   and (key is null or not (key::text = any ($3)))
