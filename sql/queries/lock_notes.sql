-- Locks the notes that no other transaction is deleting. It skips the others instead of waiting,
-- so that ELF cannot deadlock with an application's delete.
-- $1 note ids
select n.note_id
  from memory_notes n
 where n.note_id = any ($1)
 order by n.note_id
   for key share skip locked
