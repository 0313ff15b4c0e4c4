-- The trigger functions of memory_notes run as their owner, so they must do nothing but
-- write the outbox, whoever attaches them to whatever table:
--
-- * PUBLIC may not execute them. Postgres asks for EXECUTE where a trigger is created,
--   not where it fires: applications still need rights on memory_notes alone.
-- * They refuse every table but memory_notes. Its name is looked up at run time, because
--   a restored database has other oids.
-- * They look nothing up in a schema that others may write: tables are named with their
--   schema, operators are pg_catalog's. Rows are compared by their image (`*<>`), which
--   needs no operator, cast or collation of a column's type.
--
-- `elf migrate` then gives them to a role that may do nothing else: sql/trigger_role.sql.
-- No statement here locks a table.
do $migration$
declare
    -- memory_notes may be in another schema than ELF's tables and functions.
    notes constant text := (select format('%I.%I', n.nspname, c.relname)
                              from pg_catalog.pg_class c
                              join pg_catalog.pg_namespace n on n.oid = c.relnamespace
                             where c.oid = 'memory_notes'::pg_catalog.regclass);
    elf   constant name := (select n.nspname
                              from pg_catalog.pg_class c
                              join pg_catalog.pg_namespace n on n.oid = c.relnamespace
                             where c.oid = 'indexing_outbox'::pg_catalog.regclass);
    -- The beginning of every function: only memory_notes may fire it.
    guard constant text := format($sql$
    if tg_relid operator(pg_catalog.<>) %L::pg_catalog.regclass::pg_catalog.oid then
        raise exception '%% fires on %% only, not on %%', tg_name, %L, tg_relid::pg_catalog.regclass
            using errcode = 'insufficient_privilege';
    end if;$sql$, notes, notes);
    name text;
begin
    execute format($sql$
create or replace function %1$I.elf_note_inserted() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $body$
begin%2$s
    insert into %1$I.indexing_outbox (note_id, op) select n.note_id, 'UPSERT' from new_rows n;
    return null;
end $body$
$sql$, elf, guard);

    -- Only a change that a search can see is a change: an application may count
    -- hits in a column of its own without indexing the note again.
    execute format($sql$
create or replace function %1$I.elf_note_updated() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $body$
begin%2$s
    insert into %1$I.indexing_outbox (note_id, op)
    select n.note_id, 'UPSERT'
      from new_rows n
      left join old_rows o on o.note_id operator(pg_catalog.=) n.note_id
     where o.note_id is null
        or row(o.text, o.status, o.expires_at, o.tenant_id, o.project_id, o.agent_id, o.scope,
               o.type, o.key, o.importance, o.confidence, o.updated_at)::pg_catalog.record
           operator(pg_catalog.*<>)
           row(n.text, n.status, n.expires_at, n.tenant_id, n.project_id, n.agent_id, n.scope,
               n.type, n.key, n.importance, n.confidence, n.updated_at)::pg_catalog.record
    union all
    select o.note_id, 'DELETE'
      from old_rows o
      left join new_rows n on n.note_id operator(pg_catalog.=) o.note_id
     where n.note_id is null;
    return null;
end $body$
$sql$, elf, guard);

    execute format($sql$
create or replace function %1$I.elf_note_deleted() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $body$
begin%2$s
    insert into %1$I.indexing_outbox (note_id, op) select o.note_id, 'DELETE' from old_rows o;
    return null;
end $body$
$sql$, elf, guard);

    execute format($sql$
create or replace function %1$I.elf_notes_truncated() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $body$
begin%2$s
    insert into %1$I.indexing_outbox (note_id, op)
    select distinct s.note_id, 'DELETE' from %1$I.note_index_state s;
    return null;
end $body$
$sql$, elf, guard);

    -- This one runs as whoever writes the outbox.
    execute format($sql$
create or replace function %1$I.elf_outbox_notify() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $body$
begin
    if coalesce(current_setting('elf.notify', true), 'on') <> 'off'
       and exists (select from new_rows) then
        perform pg_notify('elf_outbox', '');
    end if;
    return null;
end $body$
$sql$, elf);

    foreach name in array array['elf_note_inserted', 'elf_note_updated', 'elf_note_deleted',
                                'elf_notes_truncated', 'elf_outbox_notify'] loop
        execute format('revoke all on function %I.%I() from public', elf, name);
    end loop;
end $migration$;
