-- ELF's statements in this database that wait for a lock, the longest wait first. Postgres hides the state of
-- the sessions of other roles from a role without pg_read_all_stats: then only their ids are known.
select coalesce((select l.relation::regclass::text
                   from pg_locks l
                  where l.pid = a.pid and not l.granted and l.relation is not null
                  limit 1),
                'a row') as "on!",
       coalesce((select min(l.waitstart) from pg_locks l where l.pid = a.pid and not l.granted),
                a.query_start, now()) as "since!",
       coalesce((select string_agg(pg_catalog.format('process %s (%s, %s for %s s)', b.pid,
                                          coalesce(nullif(b.application_name, ''), b.usename),
                                          coalesce(b.state, b.backend_type),
                                          extract(epoch from clock_timestamp()
                                                  - coalesce(b.xact_start, b.backend_start))::int), ', '
                                   order by b.pid)
                   from pg_stat_activity b
                  where b.pid = any (pg_blocking_pids(a.pid))),
                'a prepared transaction') as "held_by!"
  from pg_stat_activity a
 where a.datname = current_database() and a.application_name = 'elf' and a.wait_event_type = 'Lock'
 order by 2
