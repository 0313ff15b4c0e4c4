-- Deletes all outbox rows but the newest of each note, for a version that is being built. After an
-- abandoned reindex no worker claims them, and every change of a note adds one. A claimed row
-- may be deleted too, because the newer one stays. A row for later stays: it asks for one more round then.
-- $1 version, $2 and $3 only rows after this one (available_at, outbox_id), $4 rows at most
with page as materialized (
    select o.outbox_id, o.note_id, o.available_at, o.created_at
      from indexing_outbox o
     where o.embedding_version = $1 and o.status in ('PENDING', 'FAILED')
       and o.available_at <= now()
       and (o.available_at, o.outbox_id) > ($2, $3)
     order by o.available_at, o.outbox_id
     limit $4
),
older as materialized (
    select o.outbox_id
      from indexing_outbox o
     where o.outbox_id = any (array(
            select p.outbox_id
              from page p
             where (select true
                      from indexing_outbox n
                     where n.note_id = p.note_id and n.embedding_version = $1
                       -- Not `= 'PENDING'`: see expire.sql.
                       and n.status <> 'DONE' and n.status is not distinct from 'PENDING'
                       and n.available_at <= now()
                       and (n.created_at, n.outbox_id) > (p.created_at, p.outbox_id)
                     limit 1)))
       and o.status is not distinct from 'PENDING'
       for update skip locked
),
gone as (
    delete from indexing_outbox
     where outbox_id = any (array(select o.outbox_id from older o))
    returning outbox_id
)
select p.available_at as "due!", p.outbox_id as "last!", (select count(*) from gone) as "gone!"
  from page p
 order by p.available_at desc, p.outbox_id desc
 limit 1
