-- The chunks among these that belong to a note which is live now. A point that a
-- crash left behind has none.
-- $1 version, $2 chunk ids
select c.chunk_id, c.note_id, c.chunk_index, c.start_offset, c.end_offset, c.text, n.key::text as key
  from memory_note_chunks c
  join memory_notes n on n.note_id = c.note_id
 where c.chunk_id = any ($2) and c.embedding_version = $1
   and n.status = 'active' and (n.expires_at is null or n.expires_at > now())
