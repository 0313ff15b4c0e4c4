-- The application may have made the table, so every column but the id may be null or out of range.
-- A row like that must not fail the query for the other notes. So times are limited to the years
-- that the payload can hold, and weights to what fits a real.
-- See revalidate.sql for `offset 0`.
-- $1 note ids, $2 bytes of text at most: a longer text is not read
select n.note_id as "note_id!",
       case when octet_length(n.text) <= $2 then n.text else '' end as "text!",
       coalesce(octet_length(n.text), 0) as "text_bytes!",
       coalesce(n.status, '') as "status!",
       case when n.expires_at is not null
            then least(greatest(n.expires_at, '0001-01-01 00:00+00'), '9999-12-31 00:00+00')
        end as expires_at,
       coalesce(n.tenant_id::text, '') as "tenant_id!",
       coalesce(n.project_id::text, '') as "project_id!",
       coalesce(n.agent_id::text, '') as "agent_id!",
       coalesce(n.scope::text, '') as "scope!",
       coalesce(n.type::text, '') as "kind!",
       n.key::text as key,
       (case when abs(n.importance) between 1e-37 and 1e37 then n.importance else 0 end)::real
           as "importance!",
       (case when abs(n.confidence) between 1e-37 and 1e37 then n.confidence else 0 end)::real
           as "confidence!",
       least(greatest(coalesce(n.updated_at, 'epoch'), '0001-01-01 00:00+00'), '9999-12-31 00:00+00')
           as "updated_at!",
       now() as "now!"
  from unnest($1::uuid[]) as u (note_id)
 cross join lateral (
        select *
          from memory_notes n
         where n.note_id = u.note_id
        offset 0) n
