-- A search that a key may look at: one of a key that reached no more. A trace of another tenant
-- and a trace that does not exist take the same look-up.
-- $1 trace id, $2 tenant, $3 project or null for all, $4 agent or null for all
select t.trace_id, t.query, t.request, t.embedding_version, t.degraded, t.candidates, t.dropped,
       t.took_ms, t.created_at
  from search_traces t
 where t.trace_id = $1
   and t.tenant_id = $2
   and ($3::text is null or t.project_id = $3)
   and ($4::text is null or t.agent_id = $4)
