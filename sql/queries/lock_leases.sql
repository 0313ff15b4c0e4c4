-- Locks the notes that are still leased under this token: no worker can claim them before the
-- transaction ends.
-- Here and in the other statements about leases, `= any` of an array selects the rows, not a join
-- with `unnest`. After a vacuum of an empty table Postgres assumes for some time that it is still
-- empty, and a join would read all of it once for each note.
-- $1 version, $2 note ids, $3 token
select s.note_id, s.revision is not null as "was_indexed!"
  from note_index_state s
 where s.note_id = any ($2) and s.embedding_version = $1 and s.lease_token = $3
 order by s.note_id
   for update
