-- Makes a role that may only write the outbox the owner of the trigger functions of memory_notes.
-- `elf migrate` runs this whenever the role does not own them: the first time, and after a
-- restore under another owner. All databases of a server share the role.
do $$
declare
    writer    constant text := 'elf_outbox_writer';
    functions constant text[] := array['elf_note_inserted', 'elf_note_updated', 'elf_note_deleted',
                                       'elf_notes_truncated', 'elf_note_replicated'];
    elf       constant text := (select relnamespace::regnamespace from pg_catalog.pg_class
                                 where oid = 'indexing_outbox'::regclass);
    name      text;
begin
    begin
        if not exists (select from pg_catalog.pg_roles where rolname = writer) then
            execute format('create role %I nologin', writer);
        end if;
    exception when duplicate_object or unique_violation then
        null; -- `elf migrate` of another database has just created it
    end;
    if exists (select from pg_catalog.pg_roles r
                where rolname = writer
                  and (rolsuper or rolcanlogin or rolcreaterole or rolcreatedb or rolreplication
                       or rolbypassrls
                       or exists (select from pg_catalog.pg_auth_members where member = r.oid))) then
        raise exception 'the role % exists and may do more than write the outbox', writer
            using errcode = 'insufficient_privilege';
    end if;
    -- Only a member of the role can make it an owner, and change its functions later.
    if not pg_catalog.pg_has_role(writer, 'usage') then
        execute format('grant %I to %I', writer, current_user);
    end if;

    execute format('grant usage, create on schema %s to %I', elf, writer);
    execute format('grant insert (note_id, op) on %s.indexing_outbox to %I', elf, writer);
    execute format('grant select (note_id) on %s.note_index_state to %I', elf, writer);
    -- A grant without the right to grant is only a warning in Postgres. So check the rights here:
    -- without them the applications' writes would fail.
    if not (has_schema_privilege(writer, elf::regnamespace, 'usage')
            and has_column_privilege(writer, 'indexing_outbox'::regclass, 'note_id', 'insert')
            and has_column_privilege(writer, 'indexing_outbox'::regclass, 'op', 'insert')
            and has_column_privilege(writer, 'note_index_state'::regclass, 'note_id', 'select')) then
        raise exception 'the current role may not grant rights on ELF''s tables'
            using errcode = 'insufficient_privilege';
    end if;
    foreach name in array functions loop
        execute format('alter function %s.%I() owner to %I', elf, name, writer);
        execute format('revoke all on function %s.%I() from public', elf, name);
    end loop;
    execute format('revoke create on schema %s from %I', elf, writer);
end $$;
