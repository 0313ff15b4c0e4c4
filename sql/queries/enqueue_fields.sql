-- Enqueues the notes that have one of these fields: their payloads change.
-- $1 names of fields
insert into indexing_outbox (note_id, op)
select n.note_id, 'UPSERT'
  from memory_notes n
 where n.metadata <> '{}' and n.metadata ?| $1::text[]
