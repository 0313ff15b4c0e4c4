-- Puts one new outbox row in the place of all that are due for a note, for a version that is being built.
-- After an abandoned reindex no worker claims them, and every change of a note adds one. None of the old
-- rows may stay instead: a claim may have taken it before another one was committed, and acks it. Their
-- times do not tell: `created_at` is when a transaction began. A row for later stays: it asks for one more
-- round then.
-- $1 version, $2 and $3 only rows after this one (available_at, outbox_id), $4 rows at most
with page as materialized (
    select o.outbox_id, o.note_id, o.available_at
      from indexing_outbox o
     where o.embedding_version = $1 and o.status in ('PENDING', 'FAILED')
       and o.available_at <= now()
       and (o.available_at, o.outbox_id) > ($2, $3)
     order by o.available_at, o.outbox_id
     limit $4
),
due as materialized (
    select o.outbox_id, o.note_id, o.available_at, o.created_at
      from indexing_outbox o
     where o.note_id = any (array(select distinct p.note_id from page p))
       and o.embedding_version = $1
       and o.status <> 'DONE' and o.status is not distinct from 'PENDING'
       and o.available_at <= now()
     limit 10 * $4
       for update skip locked
),
many as materialized (
    select d.note_id, min(d.available_at) as available_at, min(d.created_at) as created_at
      from due d
     group by d.note_id
    having count(*) > 1
),
gone as (
    delete from indexing_outbox
     where outbox_id = any (array(
            select d.outbox_id from due d where (d.note_id in (select m.note_id from many m)) is true))
    returning outbox_id
),
kept as (
    -- A worker reads the note, not `op`.
    insert into indexing_outbox (note_id, op, embedding_version, available_at, created_at)
    select m.note_id, 'UPSERT', $1, m.available_at, m.created_at
      from many m
    returning outbox_id
)
select p.available_at as "due!", p.outbox_id as "last!",
       (select count(*) from gone) - (select count(*) from kept) as "gone!"
  from page p
 order by p.available_at desc, p.outbox_id desc
 limit 1
