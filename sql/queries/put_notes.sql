-- Inserts notes, or replaces those that have these ids if a key reaches them. An equal note changes nothing but its row's
-- version. In the order of ids, so that two requests do not deadlock. One array per column, as in add_notes.sql;
-- $15 tenant, $16 project or null for all, $17 agent or null for all
insert into memory_notes as n
       (note_id, tenant_id, project_id, agent_id, scope, type, key, text, importance, confidence,
        expires_at, source_ref, title, metadata)
select u.*
  from unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[],
              $7::text[], $8::text[], $9::real[], $10::real[], $11::timestamptz[],
              $12::jsonb[], $13::text[], $14::jsonb[])
       as u (note_id, tenant_id, project_id, agent_id, scope, type, key, text, importance,
             confidence, expires_at, source_ref, title, metadata)
 order by u.note_id
on conflict (note_id) do update
   set project_id = excluded.project_id, agent_id = excluded.agent_id, scope = excluded.scope, key = excluded.key,
       type = excluded.type, text = excluded.text, importance = excluded.importance,
       confidence = excluded.confidence, expires_at = excluded.expires_at,
       source_ref = excluded.source_ref, title = excluded.title, metadata = excluded.metadata, status = 'active',
       updated_at = case
           when (n.project_id::text, n.agent_id::text, n.scope::text, n.key::text, n.type, n.text,
                 n.importance, n.confidence, n.expires_at, n.source_ref, n.title, n.metadata, n.status)
                is distinct from
                (excluded.project_id::text, excluded.agent_id::text, excluded.scope::text, excluded.key::text,
                 excluded.type, excluded.text, excluded.importance, excluded.confidence, excluded.expires_at,
                 excluded.source_ref, excluded.title, excluded.metadata, 'active')
           then now() else n.updated_at end
 where elf_is_reached(n, $15, $16, $17)
returning n.note_id as "note_id!", n.tenant_id::text as "tenant_id!", n.project_id::text as "project_id!",
          n.agent_id::text as "agent_id!", n.scope::text as "scope!", n.key::text as "key?",
          n.xmax::text = '0' as "is_new!"
