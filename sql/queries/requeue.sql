-- Requeues notes, unless their version was dropped meanwhile.
-- $1 version, $2 note ids, $3 seconds until they are due
insert into indexing_outbox (note_id, op, embedding_version, available_at)
select u.note_id, 'UPSERT', v.embedding_version, now() + make_interval(secs => $3)
  from unnest($2::uuid[]) as u (note_id)
 cross join index_versions v
 where v.embedding_version = $1
