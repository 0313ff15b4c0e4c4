-- no-transaction
-- oldest program: unchanged
-- A key names one note in its tenant, project, agent and scope, whatever the note's status: a write that is sent
-- twice is one note. Null and '' are no keys.
create unique index concurrently if not exists memory_notes_key_idx
    on memory_notes (tenant_id, project_id, agent_id, scope, key) where key <> '';
