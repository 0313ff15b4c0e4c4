-- The notes that nobody is deleting. Skipping the others instead of waiting for
-- them means that an application's delete can never wait for us in a circle.
-- $1 note ids
select n.note_id
  from memory_notes n
 where n.note_id = any ($1)
 order by n.note_id
   for key share skip locked
