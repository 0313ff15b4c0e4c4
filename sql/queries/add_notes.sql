-- Inserts notes with ids that Postgres has never seen, and returns the ids that were inserted: a
-- trigger of the application may change them or drop a row. One array per column.
insert into memory_notes
       (note_id, tenant_id, project_id, agent_id, scope, type, key, text, importance, confidence,
        expires_at, source_ref)
select * from unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[],
                     $7::text[], $8::text[], $9::real[], $10::real[], $11::timestamptz[],
                     $12::jsonb[])
returning note_id
