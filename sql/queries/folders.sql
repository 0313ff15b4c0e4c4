-- The folders that `elf import --sync` keeps equal to their notes, and how many each has.
select n.source::text as "folder!", count(*) as "notes!"
  from memory_notes n
 where n.source is not null and n.source::text like 'folder:%'
 group by n.source::text
 order by 1
