-- Leases a batch of distinct notes that have something due, oldest first, and
-- names the outbox rows that the batch will settle.
-- $1 version, $2 holder, $3 lease seconds, $4 notes at most, $5 bytes of text at most

-- Walks the due rows in order and jumps over every further row of a note it has
-- picked: ten thousand rows of one note cost one pass, and hide nobody. The lease is
-- looked up by a scalar subquery, because a join would read all of note_index_state.
with recursive picks as (
    (select o.note_id, o.available_at, o.outbox_id, 1 as n, array[o.note_id] as seen
       from indexing_outbox o
      where o.status in ('PENDING', 'FAILED')
        and o.available_at <= now()
        and (o.embedding_version = $1 or o.embedding_version is null)
        and not coalesce((select s.lease_until > now() from note_index_state s
                           where s.note_id = o.note_id and s.embedding_version = $1), false)
      order by o.available_at, o.outbox_id
      limit 1)
    union all
    select next.note_id, next.available_at, next.outbox_id, p.n + 1, p.seen || next.note_id
      from picks p
     cross join lateral (
            select o.note_id, o.available_at, o.outbox_id
              from indexing_outbox o
             where o.status in ('PENDING', 'FAILED')
               and o.available_at <= now()
               and (o.available_at, o.outbox_id) > (p.available_at, p.outbox_id)
               and (o.embedding_version = $1 or o.embedding_version is null)
               and o.note_id <> all (p.seen)
               and not coalesce((select s.lease_until > now() from note_index_state s
                                  where s.note_id = o.note_id and s.embedding_version = $1), false)
             order by o.available_at, o.outbox_id
             limit 1) next
     where p.n < $4
),
-- octet_length reads the length of a large text without reading the text.
sized as (
    select p.note_id,
           sum(coalesce(octet_length(n.text), 0)) over (order by p.n)
               - coalesce(octet_length(n.text), 0) as bytes_before
      from picks p
      left join memory_notes n on n.note_id = p.note_id
),
batch as materialized (select nextval('elf_lease_token') as token),
-- Ordered, so that two claims never wait for each other in a circle. A claim
-- that waited for another one finds the note leased, or its own token too old.
leased as (
    insert into note_index_state as s (note_id, embedding_version, lease_token, lease_until, holder)
    select z.note_id, $1, b.token, now() + make_interval(secs => $3), $2
      from sized z
     cross join batch b
     where z.bytes_before < $5
     order by z.note_id
    on conflict (note_id, embedding_version) do update
       set lease_token = excluded.lease_token,
           lease_until = excluded.lease_until,
           holder = excluded.holder
     where (s.lease_until is null or s.lease_until <= now())
       and s.lease_token < excluded.lease_token
    returning s.note_id, s.lease_token, s.failures, s.failed_sha256
)
select l.note_id as "note_id!",
       l.lease_token as "lease_token!",
       r.outbox_ids as "outbox_ids!",
       l.failures as "failures!",
       l.failed_sha256,
       r.oldest as "oldest!"
  from leased l
 cross join lateral (
        select array_agg(o.outbox_id order by o.created_at, o.outbox_id) as outbox_ids,
               min(o.created_at) as oldest
          from indexing_outbox o
         where o.note_id = l.note_id
           and o.status <> 'DONE'
           and (o.embedding_version = $1 or o.embedding_version is null)) r
 order by r.oldest
