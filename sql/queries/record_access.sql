-- Records the access labels that the points of these notes have now.
-- $1 version, $2 token, $3 note ids, $4 hashes of the access labels
with held as materialized (
    select s.note_id
      from note_index_state s
     where s.note_id = any ($3) and s.embedding_version = $1 and s.lease_token = $2
     order by s.note_id
       for update
)
update note_index_state s
   set access_sha256 = ($4::bytea[])[pg_catalog.array_position($3::uuid[], s.note_id)]
 where s.note_id = any (array(select h.note_id from held h)) and s.embedding_version = $1
