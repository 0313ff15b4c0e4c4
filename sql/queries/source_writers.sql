-- The transactions that have written a table or one of its partitions.
-- $1 the table
select distinct l.virtualtransaction as "transaction!"
  from pg_catalog.pg_locks l
 where l.locktype = 'relation' and l.mode = 'RowExclusiveLock' and l.granted
   and l.database = (select d.oid from pg_catalog.pg_database d where d.datname = pg_catalog.current_database())
   and (l.relation = pg_catalog.to_regclass($1)::pg_catalog.oid
        or l.relation in (select p.relid::pg_catalog.oid from pg_catalog.pg_partition_tree(pg_catalog.to_regclass($1)) p))
