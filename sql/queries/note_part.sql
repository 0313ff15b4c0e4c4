-- A part of the text of a note that a key reaches.
-- $1 note id, $2 tenant, $3 project or null for all, $4 agent or null for all, $5 first byte, from 0,
-- $6 bytes at most
select substr(convert_to(coalesce(n.text::text, ''), 'UTF8'), $5 + 1, $6) as "bytes!",
       octet_length(coalesce(n.text::text, '')) as "text_bytes!",
       least(greatest(coalesce(n.updated_at, 'epoch'), '0001-01-01 00:00+00'), '9999-12-31 00:00+00')
           as "updated_at!"
  from memory_notes n
 where n.note_id = $1
   and n.tenant_id::text = $2
   and ($3::text is null or n.project_id::text = $3)
   and ($4::text is null or n.agent_id::text = $4)
