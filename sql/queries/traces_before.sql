-- Searches before this time are deleted: those that are older than $1 days, and all but the
-- newest $2.
select greatest(now() - make_interval(days => $1),
                (select t.created_at from search_traces t
                  order by t.created_at desc offset $2 limit 1)) as "before!"
