-- Those of these notes that are not the tenant's. $1 note ids, $2 tenant
select n.note_id from memory_notes n
 where n.note_id = any ($1) and n.tenant_id::text is distinct from $2
