-- Inserts those of these notes that are not there, in the order of keys, as the API does: two that write the same keys
-- do not deadlock. One array per column.
insert into memory_notes
       (note_id, tenant_id, project_id, agent_id, scope, type, key, text, importance, confidence,
        expires_at, source_ref, title, metadata, source, source_id)
select u.*
  from unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[],
              $7::text[], $8::text[], $9::real[], $10::real[], $11::timestamptz[], $12::jsonb[],
              $13::text[], $14::jsonb[], $15::text[], $16::text[])
       as u (note_id, tenant_id, project_id, agent_id, scope, type, key, text, importance,
             confidence, expires_at, source_ref, title, metadata, source, source_id)
 order by u.key collate "C", u.scope collate "C", u.agent_id collate "C", u.project_id collate "C"
on conflict (note_id) do nothing
returning note_id
