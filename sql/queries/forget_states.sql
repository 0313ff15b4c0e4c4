-- Deletes the states of deleted notes whose points are deleted. Later tokens are higher all the
-- same, because they come from a sequence.
-- $1 version, $2 token, $3 note ids
with gone as materialized (
    select s.note_id
      from note_index_state s
     where s.note_id = any ($3) and s.embedding_version = $1 and s.lease_token = $2
       and s.lease_until is null
       and (select n.note_id from memory_notes n where n.note_id = s.note_id) is null
     order by s.note_id
       for update
)
delete from note_index_state
 where embedding_version = $1 and note_id = any (array(select g.note_id from gone g))
