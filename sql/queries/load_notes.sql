-- $1 note ids
select n.note_id, n.text, n.status, n.expires_at,
       n.tenant_id::text as "tenant_id!", n.project_id::text as "project_id!",
       n.agent_id::text as "agent_id!", n.scope::text as "scope!", n.type::text as "kind!",
       n.key::text as key,
       coalesce(n.importance, 0)::real as "importance!",
       coalesce(n.confidence, 0)::real as "confidence!",
       n.updated_at
  from memory_notes n
 where n.note_id = any ($1)
