-- $1 collection, $2 range, $3 done up to, $4 more points, $5 more missing vectors
update index_rebuild_ranges
   set done_upto = $3, points = points + $4, missing_vectors = missing_vectors + $5
 where collection = $1 and range_no = $2
