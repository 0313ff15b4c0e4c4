-- Records searches under the version $1. The arrays have one value for each search.
insert into search_traces
       (trace_id, key_id, tenant_id, project_id, agent_id, query, request, embedding_version,
        degraded, candidates, dropped, took_ms, created_at)
select t.trace_id, t.key_id, t.tenant_id, t.project_id, t.agent_id, t.query, t.request,
       $1, array(select jsonb_array_elements_text(t.degraded)), t.candidates, t.dropped,
       t.took_ms, t.created_at
  from unnest($2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::text[], $8::jsonb[],
              $9::jsonb[], $10::int[], $11::int[], $12::jsonb[], $13::timestamptz[])
    as t (trace_id, key_id, tenant_id, project_id, agent_id, query, request, degraded, candidates,
          dropped, took_ms, created_at)
