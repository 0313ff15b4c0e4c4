-- A session keeps the plan of the trigger's statement. Made for an update of one note, it compares each
-- row of a later update with each other one: 16,000 notes take 37 s instead of 0.3 s. Without nested
-- loops it is a hash join.
-- oldest program: unchanged
do $migration$
declare
    elf   constant text := (select relnamespace::regnamespace from pg_catalog.pg_class
                             where oid = 'indexing_outbox'::regclass);
    owner constant name := (select pg_catalog.pg_get_userbyid(proowner) from pg_catalog.pg_proc
                             where oid = format('%s.elf_note_updated()', elf)::regprocedure);
begin
    if not pg_catalog.pg_has_role(owner, 'usage') then
        raise exception 'the trigger function elf_note_updated belongs to %: as a superuser, grant % to %',
            owner, quote_ident(owner), quote_ident(current_user)
            using errcode = 'insufficient_privilege';
    end if;
    execute format('alter function %s.elf_note_updated() set enable_nestloop = off', elf);
end $migration$;
