-- Deletes those of these notes that are still the notes of these files. It locks notes in the order of their ids, as
-- every statement does.
-- $1 the folder, $2 tenant, $3 note ids, $4 the files
with gone as materialized (
    select n.note_id
      from unnest($3::uuid[], $4::text[]) as u (note_id, source_id)
      join memory_notes n on n.note_id = u.note_id and n.source_id = u.source_id
     where n.source = $1 and n.tenant_id::text = $2
     order by n.note_id::text collate "C" -- see import_changed.sql
       for update of n
)
delete from memory_notes n using gone g where n.note_id = g.note_id
