-- Gives ELF's triggers the modes of sql/tables again, where `pg_restore --disable-triggers` or an
-- `enable trigger all` has given them others. A trigger that an operator disabled stays disabled.
do $$
declare
    wrong record;
begin
    for wrong in
        select t.tgname, t.tgrelid::pg_catalog.regclass as of_table, m.how
          from (values ('elf_note_replicated', 'R', 'replica'),
                       ('elf_notes_truncated', 'A', 'always'),
                       ('elf_outbox_notify', 'A', 'always')) as m (name, mode, how)
          join pg_catalog.pg_trigger t on t.tgname = m.name and t.tgenabled not in (m.mode::"char", 'D')
         where t.tgrelid in ('memory_notes'::pg_catalog.regclass, 'indexing_outbox'::pg_catalog.regclass)
    loop
        execute pg_catalog.format('alter table %s enable %s trigger %I', wrong.of_table, wrong.how, wrong.tgname);
    end loop;
end $$;
