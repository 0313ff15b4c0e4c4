-- The columns of a table, in their order, with their place in the primary key. A type is what its domain is based on.
-- $1 the oid of the table
select a.attname::text as "name!",
       pg_catalog.quote_ident(n.nspname) || '.' || pg_catalog.quote_ident(t.typname) as "kind!",
       t.typname::text as "base!",
       n.nspname = 'pg_catalog' as "is_own!",
       -- Postgres compares such values in its own way, and writes each as one text.
       (n.nspname = 'pg_catalog' or t.typtype = 'e') and t.typtype <> 'c' and t.typcategory <> 'A' as "can_be_key!",
       (select p.place::int from pg_catalog.pg_index i
         cross join lateral pg_catalog.unnest(i.indkey::pg_catalog.int2[]) with ordinality as p (attnum, place)
         where i.indrelid = a.attrelid and i.indisprimary and p.attnum = a.attnum and p.place <= i.indnkeyatts) as place
  from pg_catalog.pg_attribute a
 cross join lateral (
        with recursive bases as (
            select d.oid, d.typbasetype from pg_catalog.pg_type d where d.oid = a.atttypid
            union all
            select d.oid, d.typbasetype from bases b join pg_catalog.pg_type d on d.oid = b.typbasetype
        )
        select b.oid from bases b where b.typbasetype = 0::pg_catalog.oid) b
  join pg_catalog.pg_type t on t.oid = b.oid
  join pg_catalog.pg_namespace n on n.oid = t.typnamespace
 where a.attrelid = $1 and a.attnum > 0 and not a.attisdropped
 order by a.attnum
