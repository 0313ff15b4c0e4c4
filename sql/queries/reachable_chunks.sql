-- The chunks of a note that a key reaches, in their order.
-- $1 note id, $2 tenant, $3 project or null for all, $4 agent or null for all, $5 version
select c.chunk_id as "chunk_id!", c.chunk_index as "chunk_index!",
       c.start_offset as "start_offset!", c.end_offset as "end_offset!", c.text as "text!"
  from memory_notes n
 cross join lateral elf_chunks_of(n.note_id, $5) c
 where n.note_id = $1
   and elf_is_reached(n, $2, $3, $4)
 order by c.chunk_index
