-- Those of these notes that no later claim has taken over.
-- $1 version, $2 note ids, $3 token
select note_id
  from note_index_state
 where note_id = any ($2) and embedding_version = $1 and lease_token = $3
