-- The rows are there: this transaction has locked them. So every row is a conflict, and
-- the key's index finds it whatever Postgres believes of the table. Until the vector engine
-- has answered, points may have the access labels from before: unless those are the same,
-- nothing is known of them.
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
