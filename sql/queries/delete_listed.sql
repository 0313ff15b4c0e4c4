-- Deletes those of these notes that are still as a filter says, and follow no row.
-- $1 what they must be like, by name, $2 note ids
with page as materialized (
    select n.note_id
      from memory_notes n
     where n.note_id = any ($2) and elf_is_of(n, $1)
       and not exists (select from elf_sources s where s.source = n.source::text)
     order by n.note_id
       for update of n
)
delete from memory_notes n
 where n.note_id = any (array(select p.note_id from page p))
