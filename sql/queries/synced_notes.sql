-- The next notes of a folder in a tenant, with the file of each.
-- $1 the folder, $2 tenant, $3 the last note before, $4 so many
select n.note_id, n.source_id::text as "source_id!"
  from memory_notes n
 where n.source = $1 and n.tenant_id::text = $2 and n.note_id > $3 and n.source_id is not null
 order by n.source, n.note_id
 limit $4
