-- Reads a page of expired notes, and enqueues those that still have points. It looks back for some
-- time, because a worker may have indexed a note while it expired.
-- $1 version, $2 seconds to look back, null for all time, $3 and $4 only notes behind this one
-- (expires_at, as text because it may be '-infinity', and note_id), null from the beginning,
-- $5 notes at most, $6 whether a full page is one of a backlog
with page as materialized (
    select n.note_id, n.expires_at
      from memory_notes n
     where n.expires_at <= now()
       and (n.expires_at, n.note_id) > (
            coalesce($3::text::timestamptz, now() - make_interval(secs => $2), '-infinity'),
            coalesce($4, '00000000-0000-0000-0000-000000000000'::uuid))
     order by n.expires_at, n.note_id
     limit $5
),
enqueued as (
    insert into indexing_outbox (note_id, op, embedding_version, available_at)
    -- A million that are due now would be among the rows that were just written, which a worker takes
    -- before those of a backlog.
    select p.note_id, 'DELETE', $1,
           case when $6 and (select count(*) from page) = $5 then now() - interval '10 seconds' else now() end
      from page p
     where (select s.chunk_count > 0
              from note_index_state s
             where s.note_id = p.note_id and s.embedding_version = $1)
       and exists (select from index_versions v
                    where v.embedding_version = $1 and v.state in ('active', 'building'))
       and (select true
              from elf_open_rows(p.note_id, $1) o
             where o.status <> 'DEAD' and o.available_at <= now()
               and (o.embedding_version = $1
                    or (select v.state = 'active' from index_versions v where v.embedding_version = $1))
             limit 1) is not true
    returning outbox_id
)
select p.expires_at::text as "at!", p.note_id as "last!", (select count(*) from page) as "read!",
       (select count(*) from enqueued) as "enqueued!"
  from page p
 order by p.expires_at desc, p.note_id desc
 limit 1
