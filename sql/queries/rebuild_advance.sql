-- Idempotent: a rebuild that got no answer sends it again. Postgres may execute both in any order,
-- and counts the points once.
-- $1 collection, $2 range, $3 done up to, $4 more points, $5 more missing vectors
update index_rebuild_ranges
   set points = points + case when cursor < $3 then $4 else 0 end,
       missing_vectors = missing_vectors + case when cursor < $3 then $5 else 0 end,
       cursor = greatest(cursor, $3)
 where collection = $1 and range_no = $2
