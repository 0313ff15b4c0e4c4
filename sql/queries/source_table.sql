-- The table of a source: what it is called and what it is; no row if there is none.
-- $1 its name as in SQL
select c.oid as "oid!",
       pg_catalog.quote_ident(n.nspname) as "schema!",
       pg_catalog.quote_ident(n.nspname) || '.' || pg_catalog.quote_ident(c.relname) as "name!",
       pg_catalog.quote_ident(c.relname) as "alias!",
       c.relkind::text as "kind!",
       c.relrowsecurity as "has_policies!",
       c.relispartition as "is_partition!",
       pg_catalog.pg_get_userbyid(c.relowner)::text as "owner!",
       c.relowner = (select r.oid from pg_catalog.pg_roles r where r.rolname = current_user) as "is_own!",
       exists (select from pg_catalog.pg_inherits i
                where c.relkind = 'r' and (i.inhparent = c.oid or i.inhrelid = c.oid and not c.relispartition)) as "inherits!",
       (select pg_catalog.quote_ident(e.nspname) from pg_catalog.pg_class k join pg_catalog.pg_namespace e on e.oid = k.relnamespace
         where k.oid = 'elf_sources'::pg_catalog.regclass::pg_catalog.oid) as "elf!",
       (select pg_catalog.quote_ident(e.nspname) || '.' || pg_catalog.quote_ident(k.relname)
          from pg_catalog.pg_class k join pg_catalog.pg_namespace e on e.oid = k.relnamespace
         where k.oid = 'memory_notes'::pg_catalog.regclass::pg_catalog.oid) as "notes!",
       (select k.relrowsecurity from pg_catalog.pg_class k where k.oid = 'memory_notes'::pg_catalog.regclass::pg_catalog.oid) as "notes_have_policies!"
  from pg_catalog.pg_class c
  join pg_catalog.pg_namespace n on n.oid = c.relnamespace
 where c.oid = pg_catalog.to_regclass($1)::pg_catalog.oid
