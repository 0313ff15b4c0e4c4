-- Writes notes that are new or differ. An equal note is not written, so it is not indexed again.
-- One array per column.
insert into memory_notes as n
       (note_id, tenant_id, project_id, agent_id, scope, type, key, text, importance, confidence,
        expires_at, source_ref)
select * from unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[],
                     $7::text[], $8::text[], $9::real[], $10::real[], $11::timestamptz[],
                     $12::jsonb[])
on conflict (note_id) do update
   set tenant_id = excluded.tenant_id, project_id = excluded.project_id,
       agent_id = excluded.agent_id, scope = excluded.scope, type = excluded.type,
       key = excluded.key, text = excluded.text, importance = excluded.importance,
       confidence = excluded.confidence, expires_at = excluded.expires_at,
       source_ref = excluded.source_ref, status = 'active', updated_at = now()
 where (n.tenant_id, n.project_id, n.agent_id, n.scope, n.type, n.text, n.importance,
        n.confidence, n.expires_at, n.source_ref, n.status)
       is distinct from
       (excluded.tenant_id, excluded.project_id, excluded.agent_id, excluded.scope,
        excluded.type, excluded.text, excluded.importance, excluded.confidence,
        excluded.expires_at, excluded.source_ref, 'active')
