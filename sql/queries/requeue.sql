-- Requeues notes, unless their version was dropped meanwhile. Their chunks or points may be wrong, so
-- they count as not confirmed, and the next commit writes all of them: also if they are acked between
-- the two.
-- $1 version, $2 note ids, $3 seconds until they are due
with states as materialized (
    select s.note_id
      from note_index_state s
     where s.note_id = any ($2) and s.embedding_version = $1
     order by s.note_id
       for update
),
unconfirmed as (
    update note_index_state s
       set indexed_revision = null
     where s.note_id = any (array(select t.note_id from states t)) and s.embedding_version = $1
)
insert into indexing_outbox (note_id, op, embedding_version, available_at)
select u.note_id, 'UPSERT', v.embedding_version, now() + make_interval(secs => $3)
  from pg_catalog.unnest($2::uuid[]) as u (note_id)
 cross join index_versions v
 where v.embedding_version = $1
