-- The notes that an evaluation wrote. $1 tenant, $2 the agent of evaluations
select n.note_id from memory_notes n where n.tenant_id::text = $1 and n.agent_id::text = $2
