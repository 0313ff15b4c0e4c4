-- Deletes hits that are older than $1 days, at most $2 of them.
with old as materialized (
    select h.hit_id
      from memory_hits h
     where h.created_at < now() - make_interval(days => $1)
     order by h.created_at
     limit $2
       for update skip locked
)
delete from memory_hits h using old where h.hit_id = old.hit_id
