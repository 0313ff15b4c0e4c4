-- Requests a verify of every version and returns a row, if this is another server than workers
-- last saw. It was promoted or restored, and may have lost transactions that the index has.
with server as (
    select c.system_identifier::text || '/' || left(pg_walfile_name(pg_current_wal_lsn()), 8) as identity
      from pg_control_system() c
),
seen as (
    update index_versions v
       set server_identity = s.identity,
           verify_requested = v.verify_requested or v.server_identity is not null
      from server s
     where v.server_identity is distinct from s.identity
    returning v.verify_requested
)
select 1 as "is_another!" from seen where verify_requested limit 1
