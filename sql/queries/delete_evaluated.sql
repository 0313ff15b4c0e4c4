-- Deletes notes that an evaluation wrote, and returns them.
-- $1 tenant, $2 the agent of evaluations, $3 keys of notes to keep
delete from memory_notes n
 where n.tenant_id::text = $1 and n.agent_id::text = $2
   and not exists (select from unnest($3::text[]) as k (key) where k.key = n.key::text)
returning n.note_id
