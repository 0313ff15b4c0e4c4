-- Deletes a note that a key reaches. Only who reaches a note learns that it is refused.
-- $1 note id, $2 tenant, $3 project or null for all, $4 agent or null for all
delete from memory_notes n
 where n.note_id = $1
   and case when elf_is_reached(n, $2, $3, $4) then elf_may_change(n) end
