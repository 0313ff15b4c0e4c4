-- Takes back what default privileges gave. PUBLIC gets no right on ELF's tables and sequences: some have the texts of
-- all tenants. On the tables of `private`, other roles get no right by default either: a role that may insert an API key
-- could make its own, and queries are private to a tenant. `elf migrate` runs this each time, because a restore makes the
-- tables again. What an administrator granted to a role stays, and memory_notes is the application's.
do $$
declare
    private constant text[] := array['elf_api_keys', 'elf_left_out', 'search_traces', 'search_trace_items', 'memory_hits'];
    tables  constant text[] := private || array[
        'elf_metadata_fields', 'elf_migrations', 'elf_schema', 'elf_sources', 'index_canary', 'index_collections', 'index_job', 'index_rebuild_ranges',
        'index_upkeep', 'index_versions', 'indexing_outbox', 'memory_note_chunks', 'note_chunk_embeddings', 'note_embeddings',
        'note_index_state', 'elf_collection_number', 'elf_lease_token'];
    given   record;
begin
    for given in
        select distinct case c.relkind when 'S' then 'sequence' else 'table' end as kind,
               c.oid::pg_catalog.regclass as name,
               case a.grantee when 0 then 'public' else a.grantee::pg_catalog.regrole::text end as grantee
          from pg_catalog.unnest(tables) as t (name)
          join pg_catalog.pg_class c on c.oid = pg_catalog.to_regclass(t.name)
         cross join lateral pg_catalog.aclexplode(c.relacl) a
         where a.grantee = 0
            or t.name = any (private) and a.grantee <> c.relowner
               and exists (select from pg_catalog.pg_default_acl d
                            cross join lateral pg_catalog.aclexplode(d.defaclacl) g
                            where d.defaclrole = c.relowner and d.defaclobjtype = 'r'
                              and d.defaclnamespace in (0, c.relnamespace) and g.grantee = a.grantee)
    loop
        execute pg_catalog.format('revoke all on %s %s from %s', given.kind, given.name, given.grantee);
    end loop;
end $$;
