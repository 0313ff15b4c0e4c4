-- The rows that are no notes, the latest first.
-- $1 of this source, $2 so many at most
select l.source_id, l.reason, l.since
  from elf_left_out l
 where l.source = $1
 order by l.since desc, l.source_id
 limit $2
