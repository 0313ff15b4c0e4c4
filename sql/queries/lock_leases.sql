-- The notes that are still leased under this token; nobody can claim them before
-- the transaction ends.
-- Rows are found by `= any` of an array here and in the other statements of a lease, and
-- not by a join with `unnest`: after a vacuum of an empty table Postgres believes for a
-- while that it stays empty, and then a join reads all of it once for each note.
-- $1 version, $2 note ids, $3 token
select s.note_id, s.revision is not null as "was_indexed!"
  from note_index_state s
 where s.note_id = any ($2) and s.embedding_version = $1 and s.lease_token = $3
 order by s.note_id
   for update
