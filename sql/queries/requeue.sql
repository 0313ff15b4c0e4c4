-- $1 version, $2 note ids
insert into indexing_outbox (note_id, op, embedding_version)
select u.note_id, 'UPSERT', $1 from unnest($2::uuid[]) as u (note_id)
