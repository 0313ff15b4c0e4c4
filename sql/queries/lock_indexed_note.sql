-- Locks a note that is indexed, unless another transaction has it, and returns its last token.
-- $1 note, $2 version
select lease_token
  from note_index_state
 where note_id = $1 and embedding_version = $2
   for update skip locked
