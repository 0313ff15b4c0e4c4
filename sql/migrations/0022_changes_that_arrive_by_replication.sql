-- A subscriber of logical replication applies changes row by row, as a replica: it fires no statement trigger, and
-- only row triggers that are enabled for a replica. The first copy of a table is a statement, as a replica
-- too. So changes that arrive this way get a row trigger, which no other session fires.
-- See 0004_trigger_rights.sql for how the function keeps other roles from gaining by it.
-- oldest program: unchanged
do $migration$
declare
    notes constant text := (select format('%I.%I', n.nspname, c.relname)
                              from pg_catalog.pg_class c
                              join pg_catalog.pg_namespace n on n.oid = c.relnamespace
                             where c.oid = 'memory_notes'::pg_catalog.regclass);
    elf   constant name := (select n.nspname
                              from pg_catalog.pg_class c
                              join pg_catalog.pg_namespace n on n.oid = c.relnamespace
                             where c.oid = 'indexing_outbox'::pg_catalog.regclass);
begin
    execute format($sql$
create function %1$I.elf_note_replicated() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $body$
begin
    if tg_relid operator(pg_catalog.<>) %2$L::pg_catalog.regclass::pg_catalog.oid then
        raise exception '%% fires on %% only, not on %%', tg_name, %2$L, tg_relid::pg_catalog.regclass
            using errcode = 'insufficient_privilege';
    end if;
    -- `pg_restore --disable-triggers` enables it for every session: there the statement triggers fire.
    if current_setting('session_replication_role') operator(pg_catalog.<>) 'replica' then
        return null;
    end if;
    if tg_op = 'DELETE' or (tg_op = 'UPDATE' and old.note_id operator(pg_catalog.<>) new.note_id) then
        insert into %1$I.indexing_outbox (note_id, op) values (old.note_id, 'DELETE');
    end if;
    if tg_op = 'INSERT'
       or (tg_op = 'UPDATE'
           and row(old.note_id, old.text, old.status, old.expires_at, old.tenant_id, old.project_id, old.agent_id,
                   old.scope, old.type, old.key, old.importance, old.confidence,
                   old.updated_at)::pg_catalog.record
               operator(pg_catalog.*<>)
               row(new.note_id, new.text, new.status, new.expires_at, new.tenant_id, new.project_id, new.agent_id,
                   new.scope, new.type, new.key, new.importance, new.confidence,
                   new.updated_at)::pg_catalog.record) then
        insert into %1$I.indexing_outbox (note_id, op) values (new.note_id, 'UPSERT');
    end if;
    return null;
end $body$
$sql$, elf, notes);
    execute format('revoke all on function %I.elf_note_replicated() from public', elf);
    execute format('create trigger elf_note_replicated after insert or update or delete on %s
                        for each row execute function %I.elf_note_replicated()', notes, elf);
    execute format('alter table %s enable replica trigger elf_note_replicated', notes);
    -- Postgres applies a truncation as a statement. A replica's rows wake the workers as others do.
    execute format('alter table %s enable always trigger elf_notes_truncated', notes);
    execute format('alter table %I.indexing_outbox enable always trigger elf_outbox_notify', elf);
end $migration$;
