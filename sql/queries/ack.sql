-- Ends the leases that are still held under this token, and deletes exactly the claimed outbox
-- rows of those notes, or marks them as done.
-- $1 version, $2 token, $3 note ids, $4 outbox ids, $5 the note of each outbox id,
-- $6 whether to keep done rows, $7 the hash of the access labels of the points of each note of
-- $3, null where it has no points
with held as materialized (
    select s.note_id
      from note_index_state s
     where s.note_id = any ($3) and s.embedding_version = $1 and s.lease_token = $2
       -- A failover of Postgres may have kept the claim and lost the commit.
       and s.revision = $2
     order by s.note_id
       for update
),
released as (
    update note_index_state s
       set lease_until = null, holder = null, indexed_at = now(), claims_lost = 0,
           -- Null: requeued since the commit.
           indexed_revision = case when s.indexed_revision is not null then $2 end,
           access_sha256 = ($7::bytea[])[pg_catalog.array_position($3::uuid[], s.note_id)]
     where s.note_id = any (array(select h.note_id from held h)) and s.embedding_version = $1
),
rows as materialized (
    select u.outbox_id
      from unnest($4::uuid[], $5::uuid[]) as u (outbox_id, note_id)
     where (u.note_id in (select note_id from held)) is true
),
deleted as (
    delete from indexing_outbox o
     where not $6 and o.outbox_id = any (array(select r.outbox_id from rows r))
),
kept as (
    update indexing_outbox o
       set status = 'DONE', last_error = null, updated_at = now()
     where $6 and o.outbox_id = any (array(select r.outbox_id from rows r))
)
select note_id from held
