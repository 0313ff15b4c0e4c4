-- How many of these notes no worker has brought into step yet, and how many are dead-lettered.
-- A scheduled row is not due and does not count. The lateral look-up keeps the plan from
-- turning into a scan of the whole outbox.
-- $1 note ids, $2 version
select count(*) filter (where o.is_waiting) as "waiting!",
       count(*) filter (where o.is_dead) as "dead!"
  from pg_catalog.unnest($1::uuid[]) as asked (note_id)
 cross join lateral (
        select bool_or(o.status <> 'DEAD') as is_waiting, bool_or(o.status = 'DEAD') as is_dead
          from elf_open_rows(asked.note_id, $2) o) o
