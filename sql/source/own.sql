-- Makes a role that may only read the table and write notes the owner of the functions. All databases of a server share
-- it.
do {quote}
declare
    writer    constant name := 'elf_source_writer';
    functions constant text[] := array[{functions}];
    policed   constant text[] := array[{with_policies}]::text[];
    each      text;
begin
    begin
        if not exists (select from pg_catalog.pg_roles where rolname = writer) then
            execute pg_catalog.format('create role %I nologin', writer);
        end if;
    exception when duplicate_object or unique_violation then
        null; -- another database of the server has just made it
    end;
    if exists (select from pg_catalog.pg_roles r
                where r.rolname = writer
                  and (r.rolsuper or r.rolcanlogin or r.rolcreaterole or r.rolcreatedb or r.rolreplication or r.rolbypassrls
                       or exists (select from pg_catalog.pg_auth_members m where m.member = r.oid))) then
        raise exception 'the role % exists and may do more than write the notes of sources', writer;
    end if;
    if not pg_catalog.pg_has_role(writer, 'usage') then
        execute pg_catalog.format('grant %I to %I', writer, current_user);
    end if;
    execute pg_catalog.format('grant usage, create on schema %s to %I', {elf}, writer);
    execute pg_catalog.format('grant usage on schema %s to %I', {schema}, writer);
    execute pg_catalog.format('grant select on %s to %I', {table}, writer);
    execute pg_catalog.format('grant select, insert, update, delete on %s, %s.elf_left_out to %I', {notes}, {elf}, writer);
    -- A grant without the right to grant is only a warning.
    if not (has_table_privilege(writer, {table}, 'select') and has_schema_privilege(writer, {schema}, 'usage')
            and has_table_privilege(writer, {notes}, 'insert') and has_table_privilege(writer, {notes}, 'update')
            and has_table_privilege(writer, {notes}, 'delete')) then
        raise exception 'the role % may not grant rights on % and %', current_user, {table}, {notes};
    end if;
    foreach each in array policed loop
        if not exists (select from pg_catalog.pg_policy p
                        where p.polrelid = each::pg_catalog.regclass and p.polname = writer) then
            execute pg_catalog.format('create policy %I on %s to %I using (true) with check (true)', writer, each, writer);
        end if;
    end loop;
    foreach each in array functions loop
        execute pg_catalog.format('alter function %s owner to %I', each, writer);
        execute pg_catalog.format('revoke all on function %s from public', each);
        if each ~ '[$]touch$' then
            execute pg_catalog.format('grant execute on function %s to public', each);
        end if;
        -- A sync calls these.
        if each ~ '[$](page|notes)$' then
            execute pg_catalog.format('grant execute on function %s to %I', each, current_user);
        end if;
    end loop;
    execute pg_catalog.format('revoke create on schema %s from %I', {elf}, writer);
end {quote};
