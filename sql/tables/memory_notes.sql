-- The application's table. If it exists, in whichever schema of search_path, it is kept as it is,
-- and `elf migrate` has checked that it has what ELF reads. docs/reference/sql.md says what an application may write.
do $$
begin
    if to_regclass('memory_notes') is null then
        create table memory_notes (
            note_id           uuid primary key default gen_random_uuid(),
            tenant_id         text not null,
            project_id        text not null default 'default',
            agent_id          text not null default 'default',
            scope             text not null default 'shared',
            type              text not null default 'note',
            key               text,
            title             text,
            text              text not null,
            importance        real not null default 0.5,
            confidence        real not null default 1.0,
            status            text not null default 'active',
            created_at        timestamptz not null default now(),
            updated_at        timestamptz not null default now(),
            expires_at        timestamptz,
            embedding_version text,
            source_ref        jsonb not null default '{}',
            metadata          jsonb not null default '{}'
        );
    end if;
end $$;
-- Fields of the application's own; and of a note that follows a row of a source, its name and the key of the row.
-- `elf migrate` does this, and builds the indexes concurrently, before, if the table exists: src/store/tables.rs.
do $columns$ begin
    -- An alteration that changes nothing waits for a lock too.
    if (select count(*) from pg_attribute
         where attrelid = 'memory_notes'::regclass and attname in ('metadata', 'source', 'source_id') and not attisdropped) < 3 then
        alter table memory_notes add column if not exists metadata jsonb not null default '{}',
            add column if not exists source text, add column if not exists source_id text;
    end if;
end $columns$;


-- With the id: notes that expire at the same moment are enqueued page by page.
create index if not exists memory_notes_expired_idx
    on memory_notes (expires_at, note_id) where expires_at is not null;
-- A key names one note in its tenant, project, agent and scope, whatever the note's status: a write that is sent
-- twice is one note. Null and '' are no keys.
create unique index if not exists memory_notes_key_idx
    on memory_notes (tenant_id, project_id, agent_id, scope, key) where key <> '';
-- The notes of a tenant, page by page.
create index if not exists memory_notes_tenant_idx
    on memory_notes (tenant_id, note_id);
-- The notes of a source, page by page.
create index if not exists memory_notes_source_idx
    on memory_notes (source, note_id) where source is not null;

-- The trigger functions run as their owner, so that applications need rights on memory_notes alone. So they must
-- do nothing but write the outbox, whoever attaches them to whatever table:
--
-- * PUBLIC may not execute them. Postgres asks for EXECUTE where a trigger is created,
--   not where it fires.
-- * They refuse every table but memory_notes. Its name is looked up at run time, because
--   a restored database has other oids.
-- * They look nothing up in a schema that others may write: tables are named with their schema, and operators are
--   pg_catalog's. pg_temp comes last and by name: else it would be first. Rows are compared by their
--   image (`*<>`), which needs no operator, cast or collation of a column's type.
--
-- `elf migrate` then gives them to a role that may do nothing else: sql/trigger_role.sql.
do $schema$
declare
    elf      constant name := current_schema();
    -- It may be in another schema.
    notes    constant text := (select format('%I.%I', n.nspname, c.relname)
                                 from pg_class c join pg_namespace n on n.oid = c.relnamespace
                                where c.oid = 'memory_notes'::regclass);
    -- What a search can see of a note. Only a change of it is a change: an application may count hits in a column of
    -- its own without indexing the note again.
    seen     constant text := $sql$row(%1$s.note_id, %1$s.text, %1$s.status, %1$s.expires_at, %1$s.tenant_id, %1$s.project_id,
        %1$s.agent_id, %1$s.scope, %1$s.type, %1$s.key, %1$s.source, %1$s.title, %1$s.importance, %1$s.confidence, %1$s.updated_at,
        %1$s.metadata, %1$s.source_ref operator(pg_catalog.->) 'cuts')::pg_catalog.record$sql$;
    function record;
begin
    for function in
        select * from (values ('elf_note_inserted', $sql$
    insert into %1$I.indexing_outbox (note_id, op) select n.note_id, 'UPSERT' from new_rows n;$sql$),

        ('elf_note_updated', $sql$
    insert into %1$I.indexing_outbox (note_id, op)
    select n.note_id, 'UPSERT'
      from new_rows n
      left join old_rows o on o.note_id operator(pg_catalog.=) n.note_id
     where o.note_id is null or %4$s operator(pg_catalog.*<>) %5$s
    union all
    select o.note_id, 'DELETE'
      from old_rows o
      left join new_rows n on n.note_id operator(pg_catalog.=) o.note_id
     where n.note_id is null;$sql$),

        ('elf_note_deleted', $sql$
    insert into %1$I.indexing_outbox (note_id, op) select o.note_id, 'DELETE' from old_rows o;$sql$),

        ('elf_notes_truncated', $sql$
    insert into %1$I.indexing_outbox (note_id, op)
    select distinct s.note_id, 'DELETE' from %1$I.note_index_state s;$sql$),

        -- A subscriber of logical replication applies changes row by row, as a replica: it fires no statement
        -- trigger, and only row triggers that are enabled for a replica. The first copy of a table is a statement,
        -- as a replica too. So changes that arrive this way get a row trigger, which no other session fires.
        ('elf_note_replicated', $sql$
    -- `pg_restore --disable-triggers` enables it for every session: there the statement triggers fire.
    if current_setting('session_replication_role') operator(pg_catalog.<>) 'replica' then
        return null;
    end if;
    if tg_op = 'DELETE' or (tg_op = 'UPDATE' and old.note_id operator(pg_catalog.<>) new.note_id) then
        insert into %1$I.indexing_outbox (note_id, op) values (old.note_id, 'DELETE');
    end if;
    if tg_op = 'INSERT' or (tg_op = 'UPDATE' and %6$s operator(pg_catalog.*<>) %7$s) then
        insert into %1$I.indexing_outbox (note_id, op) values (new.note_id, 'UPSERT');
    end if;$sql$)) as functions (name, body)
    loop
        execute format($sql$
create function %1$I.%3$I() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $body$
begin
    if tg_relid operator(pg_catalog.<>) %2$L::pg_catalog.regclass::pg_catalog.oid then
        raise exception '%% fires on %% only, not on %%', tg_name, %2$L, tg_relid::pg_catalog.regclass
            using errcode = 'insufficient_privilege';
    end if;$sql$ || function.body || $sql$
    return null;
end $body$;
revoke all on function %1$I.%3$I() from public$sql$, elf, notes, function.name,
            format(seen, 'o'), format(seen, 'n'), format(seen, 'old'), format(seen, 'new'));
    end loop;
end $schema$;
-- A session keeps the plan of the trigger's statement. Made for an update of one note, a nested loop would compare
-- each row of a later update with each other one: 16,000 notes take 37 s. A hash join takes 0.3 s.
alter function elf_note_updated() set enable_nestloop = off;

create trigger elf_note_inserted after insert on memory_notes
    referencing new table as new_rows for each statement execute function elf_note_inserted();
create trigger elf_note_updated after update on memory_notes
    referencing old table as old_rows new table as new_rows
    for each statement execute function elf_note_updated();
create trigger elf_note_deleted after delete on memory_notes
    referencing old table as old_rows for each statement execute function elf_note_deleted();
create trigger elf_notes_truncated after truncate on memory_notes
    for each statement execute function elf_notes_truncated();
create trigger elf_note_replicated after insert or update or delete on memory_notes
    for each row execute function elf_note_replicated();
-- sql/trigger_modes.sql gives these modes again after a restore. Postgres applies a truncation that arrives by
-- replication as a statement.
alter table memory_notes enable replica trigger elf_note_replicated;
alter table memory_notes enable always trigger elf_notes_truncated;

-- Notes that were there before ELF was.
insert into indexing_outbox (note_id, op) select note_id, 'UPSERT' from memory_notes;
