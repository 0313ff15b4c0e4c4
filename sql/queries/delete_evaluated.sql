-- Deletes notes that an evaluation wrote, and returns them. Passes over rows that another transaction has
-- locked, and says whether it did.
-- $1 tenant, $2 the agent of evaluations, $3 keys of notes to keep
with found as materialized (
    select n.note_id
      from memory_notes n
     where n.tenant_id::text = $1 and n.agent_id::text = $2
       and not exists (select from pg_catalog.unnest($3::text[]) as k (key) where k.key = n.key::text)
),
free as materialized (
    select n.note_id
      from memory_notes n
     where n.note_id = any (array(select f.note_id from found f))
       for update skip locked
),
gone as (
    delete from memory_notes n
     where n.note_id = any (array(select f.note_id from free f))
    returning n.note_id
)
select array(select g.note_id from gone g) as "gone!",
       (select count(*) from free) < (select count(*) from found) as "has_more!"
