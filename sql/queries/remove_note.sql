-- Deletes a note that a key reaches.
-- $1 note id, $2 tenant, $3 project or null for all, $4 agent or null for all
delete from memory_notes n
 where n.note_id = $1
   and n.tenant_id::text = $2
   and ($3::text is null or n.project_id::text = $3)
   and ($4::text is null or n.agent_id::text = $4)
