-- The dead tuples and the size of the outbox table.
select s.n_dead_tup as "dead_tuples!", pg_catalog.pg_total_relation_size(s.relid) as "size_bytes!"
  from pg_stat_user_tables s
 where s.relid = 'indexing_outbox'::regclass::oid
