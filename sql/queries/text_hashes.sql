-- The hashes of the texts of these notes.
select n.note_id, sha256(pg_catalog.convert_to(n.text::text, 'UTF8')) as "sha256!" from memory_notes n where n.note_id = any ($1)
