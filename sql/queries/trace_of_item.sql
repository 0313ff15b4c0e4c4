-- The search of a chunk in a trace, if a key may look at it.
-- $1 item id, $2 tenant, $3 project or null for all, $4 agent or null for all
select t.trace_id
  from search_trace_items i
  join search_traces t on t.trace_id = i.trace_id
 where i.item_id = $1
   and t.tenant_id = $2
   and ($3::text is null or t.project_id = $3)
   and ($4::text is null or t.agent_id = $4)
