-- The note that has a key in these labels, if a key of the API reaches it.
-- $1 tenant, $2 project, $3 agent, $4 scope, $5 key
select n.note_id as "note_id!"
  from memory_notes n
 where n.tenant_id::text = $1 and n.project_id::text = $2 and n.agent_id::text = $3 and n.scope::text = $4
   and n.key::text = $5 and n.key::text <> ''
