-- How many rows of each source are notes, and how many are not, for a reason.
select s.source,
       (select count(*) from memory_notes n where n.source::text = s.source) as "notes!",
       (select count(*) from elf_left_out l where l.source = s.source) as "left_out!"
  from elf_sources s
