-- Deletes searches before $1, at most $2 of them, with their items and hits.
with old as materialized (
    select t.trace_id
      from search_traces t
     where t.created_at < $1
     order by t.created_at
     limit $2
       for update skip locked
)
delete from search_traces where trace_id = any (array(select trace_id from old))
