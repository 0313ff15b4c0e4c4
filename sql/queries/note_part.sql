-- A part of the text of a note that a key reaches.
-- $1 note id, $2 tenant, $3 project or null for all, $4 agent or null for all, $5 first byte, from 0,
-- $6 bytes at most
select substr(pg_catalog.convert_to(coalesce(n.text::text, ''), 'UTF8'), $5 + 1, $6) as "bytes!",
       octet_length(coalesce(n.text::text, '')) as "text_bytes!",
       elf_time(coalesce(n.updated_at, 'epoch')) as "updated_at!"
  from memory_notes n
 where n.note_id = $1
   and elf_is_reached(n, $2, $3, $4)
