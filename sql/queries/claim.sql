-- Leases a batch of distinct notes that have something due, oldest first, and
-- names the outbox rows that the batch will settle.
-- $1 version, $2 holder, $3 lease seconds, $4 notes at most, $5 bytes of text at most,
-- $6 and $7 only rows behind this one (available_at, outbox_id), null for all,
-- $8 from so many lost claims on a note is claimed alone, $9 and from so many on not at all

-- Rows without a version are for the active one. A retired version is frozen: it is
-- nobody's, and nothing of it is claimed.
with recursive me as materialized (
    select v.state = 'active' as is_active
      from index_versions v
     where v.embedding_version = $1 and v.state in ('active', 'building')
),
-- Walks the due rows in order and jumps over every further row of a note it has
-- picked: ten thousand rows of one note cost one pass, and hide nobody. Each step is
-- two range scans of an index, this version's rows and those without one, so that it
-- never meets a row of another version. In the second the version is ordered by,
-- though it is null in all of them, because Postgres does not see that it is and would
-- sort. The lease is looked up by a scalar subquery, because a join would read all of
-- note_index_state.
picks as (
    (select u.note_id, u.available_at, u.outbox_id, 1 as n, array[u.note_id] as seen,
            coalesce((select s.claims_lost >= $8 from note_index_state s
                       where s.note_id = u.note_id and s.embedding_version = $1), false) as alone
       from ((select o.note_id, o.available_at, o.outbox_id
                from indexing_outbox o
               where o.embedding_version = $1
                 and exists (select from me)
                 and o.status in ('PENDING', 'FAILED')
                 and o.available_at <= now()
                 and (o.available_at, o.outbox_id) > (
                     coalesce($6, '-infinity'::timestamptz),
                     coalesce($7, '00000000-0000-0000-0000-000000000000'::uuid))
                 and not coalesce((select s.lease_until > now() or s.claims_lost >= $9
                                     from note_index_state s
                                    where s.note_id = o.note_id and s.embedding_version = $1), false)
               order by o.available_at, o.outbox_id
               limit 1)
             union all
             (select o.note_id, o.available_at, o.outbox_id
                from indexing_outbox o
               where o.embedding_version is null
                 and (select is_active from me)
                 and o.status in ('PENDING', 'FAILED')
                 and o.available_at <= now()
                 and (o.available_at, o.outbox_id) > (
                     coalesce($6, '-infinity'::timestamptz),
                     coalesce($7, '00000000-0000-0000-0000-000000000000'::uuid))
                 and not coalesce((select s.lease_until > now() or s.claims_lost >= $9
                                     from note_index_state s
                                    where s.note_id = o.note_id and s.embedding_version = $1), false)
               order by o.embedding_version, o.available_at, o.outbox_id
               limit 1)) u
      order by u.available_at, u.outbox_id
      limit 1)
    union all
    select next.note_id, next.available_at, next.outbox_id, p.n + 1, p.seen || next.note_id, false
      from picks p
     cross join lateral (
            select u.note_id, u.available_at, u.outbox_id
              from ((select o.note_id, o.available_at, o.outbox_id
                       from indexing_outbox o
                      where o.embedding_version = $1
                        and o.status in ('PENDING', 'FAILED')
                        and o.available_at <= now()
                        and (o.available_at, o.outbox_id) > (p.available_at, p.outbox_id)
                        and o.note_id <> all (p.seen)
                        and not coalesce((select s.lease_until > now() or s.claims_lost >= $8
                                            from note_index_state s
                                           where s.note_id = o.note_id and s.embedding_version = $1), false)
                      order by o.available_at, o.outbox_id
                      limit 1)
                    union all
                    (select o.note_id, o.available_at, o.outbox_id
                       from indexing_outbox o
                      where o.embedding_version is null
                        and (select is_active from me)
                        and o.status in ('PENDING', 'FAILED')
                        and o.available_at <= now()
                        and (o.available_at, o.outbox_id) > (p.available_at, p.outbox_id)
                        and o.note_id <> all (p.seen)
                        and not coalesce((select s.lease_until > now() or s.claims_lost >= $8
                                            from note_index_state s
                                           where s.note_id = o.note_id and s.embedding_version = $1), false)
                      order by o.embedding_version, o.available_at, o.outbox_id
                      limit 1)) u
             order by u.available_at, u.outbox_id
             limit 1) next
     where p.n < $4 and not p.alone
),
-- octet_length reads the length of a large text without reading the text. A subquery
-- looks up one row; a join may read all of memory_notes.
sized as (
    select p.note_id, p.available_at, p.outbox_id,
           sum(p.bytes) over (order by p.n) - p.bytes as bytes_before
      from (select p.note_id, p.n, p.available_at, p.outbox_id,
                   coalesce((select octet_length(n.text) from memory_notes n
                              where n.note_id = p.note_id), 0) as bytes
              from picks p
            offset 0) p
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
           holder = excluded.holder,
           -- A claim that ends in order leaves no holder. One that does not is lost.
           claims_lost = s.claims_lost + case when s.holder is null then 0 else 1 end
     where (s.lease_until is null or s.lease_until <= now())
       and s.lease_token < excluded.lease_token
    returning s.note_id, s.lease_token, s.failures, s.failed_sha256, s.claims_lost,
              s.access_sha256, s.chunk_count
),
-- The versions that are built beside this one get a row of their own for every note
-- whose rows are taken, and those become this version's, so that it happens once. A
-- change whose row is taken by a statement that does not see such a version yet was
-- committed before that was registered, and then every note is enqueued for it.
building as materialized (
    select v.embedding_version
      from index_versions v
     where v.state = 'building' and (select is_active from me)
),
taken as (
    update indexing_outbox o
       set embedding_version = $1, updated_at = now()
     where o.note_id = any (array(select l.note_id from leased l))
       and o.embedding_version is null
       and o.status in ('PENDING', 'FAILED')
       and exists (select from building)
    returning o.note_id, o.op, o.available_at, o.created_at
),
copied as (
    insert into indexing_outbox (note_id, op, embedding_version, available_at, created_at)
    select t.note_id, max(t.op), b.embedding_version, min(t.available_at), min(t.created_at)
      from taken t
     cross join building b
     group by t.note_id, b.embedding_version
)
select l.note_id as "note_id!",
       l.lease_token as "lease_token!",
       r.outbox_ids as "outbox_ids!",
       l.failures as "failures!",
       l.failed_sha256,
       l.claims_lost as "claims_lost!",
       l.access_sha256,
       l.chunk_count as "chunk_count!",
       -- An application may write '-infinity', which no timestamp of Rust can hold.
       greatest(z.available_at, '0001-01-01 00:00+00') as "picked_at!",
       z.outbox_id as "picked_id!",
       greatest(r.oldest, '0001-01-01 00:00+00') as "oldest!"
  from leased l
  join sized z using (note_id)
 cross join lateral (
        select array_agg(o.outbox_id order by o.created_at, o.outbox_id) as outbox_ids,
               -- A dead letter waits for an operator, not for a worker.
               min(o.since) filter (where o.status <> 'DEAD') as oldest
          -- Sorted outside: for the order Postgres might walk another index in full.
          from (select o.outbox_id, o.created_at, o.status,
                       -- What an application scheduled waits since it was due; what
                       -- failed, since it was written.
                       case when o.status = 'PENDING' then greatest(o.created_at, o.available_at)
                            else o.created_at end as since
                  from indexing_outbox o
                 where o.note_id = l.note_id
                   and o.status <> 'DONE'
                   and (o.embedding_version = $1
                        or o.embedding_version is null and (select is_active from me))
                offset 0) o) r
 order by r.oldest
