-- Takes back what an installation made, but for the notes: the functions, and with them the triggers, wherever they are.
do $$
declare
    own record;
begin
    for own in
        select p.oid::pg_catalog.regprocedure as name
          from pg_catalog.pg_proc p
         where p.pronamespace = (select c.relnamespace from pg_catalog.pg_class c
                                  where c.oid = 'elf_sources'::pg_catalog.regclass)
           and p.proname = any (array(select {prefix} || s from unnest(array[{suffixes}]) s))
    loop
        execute pg_catalog.format('drop function %s cascade', own.name);
    end loop;
end $$;
delete from elf_sources where source = {name};
delete from elf_left_out where source = {name} and source_id = '';
