-- Deletes the next notes of a source that was removed.
-- $1 the source, $2 so many at most
delete from memory_notes n
 where n.note_id = any (array(select o.note_id from memory_notes o where o.source::text = $1 order by o.note_id limit $2))
