-- This transaction has locked the rows, so every insert is a conflict. An update could be a
-- sequential scan, but a conflict always finds its row by the index of the key.
-- The points may have the old access labels until the vector engine has answered. So the hash is
-- set to null unless it is the same.
-- $1 version, $2 token, $3 note ids, $4 text hashes, $5 chunk counts, $6 hashes of the
-- access labels
insert into note_index_state as s
       (embedding_version, lease_token, revision, note_id, text_sha256, chunk_count, access_sha256)
select $1, $2, $2, u.*
  from unnest($3::uuid[], $4::bytea[], $5::int[], $6::bytea[])
       as u (note_id, text_sha256, chunk_count, access_sha256)
on conflict (note_id, embedding_version) do update
   set revision = excluded.revision,
       text_sha256 = excluded.text_sha256,
       chunk_count = excluded.chunk_count,
       access_sha256 = case when s.access_sha256 = excluded.access_sha256
                            then s.access_sha256 end,
       failures = 0,
       failed_sha256 = null
 where s.lease_token = excluded.lease_token
