-- Deletes a note that a key reaches.
-- $1 note id, $2 tenant, $3 project or null for all, $4 agent or null for all
delete from memory_notes n
 where n.note_id = $1
   and elf_is_reached(n, $2, $3, $4)
