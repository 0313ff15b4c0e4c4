-- Locks those of these notes that exist as an update does, or fails at once.
-- $1 note ids
select n.note_id
  from memory_notes n
 where n.note_id = any ($1)
 order by n.note_id
   for no key update nowait
