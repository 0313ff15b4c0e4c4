-- The sources whose triggers are installed.
select s.source, s.of_table, s.sha256, s.applied_at,
       (s.objects = elf_source_objects(s.source, s.of_table)) is true as "is_intact!"
  from elf_sources s
 order by s.source
