-- Default privileges of the schema may have granted rights. A role that can insert a key has one of its own making,
-- and queries are private to a tenant.
do $$
declare
    private record;
begin
    for private in
        select distinct c.relname, a.grantee
          from pg_catalog.pg_class c
         cross join lateral pg_catalog.aclexplode(c.relacl) a
         where c.oid in ('elf_api_keys'::pg_catalog.regclass,
                         'search_traces'::pg_catalog.regclass,
                         'search_trace_items'::pg_catalog.regclass,
                         'memory_hits'::pg_catalog.regclass)
           and a.grantee <> c.relowner
    loop
        execute pg_catalog.format(
            'revoke all on %I from %s', private.relname,
            case when private.grantee = 0 then 'public'
                 else private.grantee::pg_catalog.regrole::text end);
    end loop;
end $$;
