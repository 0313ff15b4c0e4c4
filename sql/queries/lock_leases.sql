-- Locks the notes that are still leased under this token: no worker can claim them before the
-- transaction ends.
-- $1 version, $2 note ids, $3 token
select s.note_id
  from note_index_state s
 where s.note_id = any ($2) and s.embedding_version = $1 and s.lease_token = $3
 order by s.note_id
   for update
