-- A role for ELF, with the rights that it needs and no others. A superuser, or the
-- administrator of a managed server, runs this once in the database of the notes:
--
--     psql --set=role=elf --set=password=… --file=role.sql "$ADMIN_URL"
--
-- `elf migrate` as this role then makes the tables. After that an application needs
-- rights on memory_notes alone: grant select, insert, update, delete on memory_notes to app;
create extension if not exists vector;

create role :"role" login password :'password';

-- The triggers on memory_notes run as this role, which may write the outbox and nothing
-- else. All databases of a server share it.
do $$
begin
    create role elf_outbox_writer nologin;
exception when duplicate_object or unique_violation then
    null;
end $$;
grant elf_outbox_writer to :"role";

-- The schema of ELF's tables and of memory_notes. A role that may create objects in it can
-- make ELF use them. So PUBLIC may not create there; before Postgres 15 it may by default.
grant usage, create on schema public to :"role" with grant option;
revoke create on schema public from public;
