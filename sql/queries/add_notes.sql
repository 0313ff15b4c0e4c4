-- Inserts notes. A note whose key another note has replaces that note, and an equal one changes nothing but its
-- row's version. Returns what a caller needs to find its notes again: a trigger of the application may change ids
-- or drop rows. In the order of keys, so that two requests with the same keys do not deadlock. One array per column.
insert into memory_notes as n
       (note_id, tenant_id, project_id, agent_id, scope, type, key, text, importance, confidence,
        expires_at, source_ref, title, metadata)
select u.*
  from unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[],
              $7::text[], $8::text[], $9::real[], $10::real[], $11::timestamptz[],
              $12::jsonb[], $13::text[], $14::jsonb[])
       as u (note_id, tenant_id, project_id, agent_id, scope, type, key, text, importance,
             confidence, expires_at, source_ref, title, metadata)
 order by u.key collate "C", u.scope collate "C", u.agent_id collate "C", u.project_id collate "C"
on conflict (tenant_id, project_id, agent_id, scope, key) where key <> '' do update
   set type = excluded.type, text = excluded.text, importance = excluded.importance,
       confidence = excluded.confidence, expires_at = excluded.expires_at,
       source_ref = excluded.source_ref, title = excluded.title, metadata = excluded.metadata, status = 'active',
       updated_at = case
           when (n.type, n.text, n.importance, n.confidence, n.expires_at, n.source_ref,
                 n.title, n.metadata, n.status)
                is distinct from
                (excluded.type, excluded.text, excluded.importance, excluded.confidence,
                 excluded.expires_at, excluded.source_ref, excluded.title, excluded.metadata, 'active')
           then now() else n.updated_at end
 where elf_may_change(n)
returning n.note_id as "note_id!", n.tenant_id::text as "tenant_id!", n.project_id::text as "project_id!",
          n.agent_id::text as "agent_id!", n.scope::text as "scope!", n.key::text as "key?",
          n.xmax::text = '0' as "is_new!"
