-- $1 collection
select range_no, cursor, upper_bound, points, missing_vectors
  from index_rebuild_ranges
 where collection = $1
 order by range_no
