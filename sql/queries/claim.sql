-- Leases a batch of distinct due notes, oldest first, and returns the outbox rows that the ack of
-- the batch will delete.
-- $1 version, $2 holder, $3 lease seconds, $4 notes at most, $5 bytes of text at most, negative to read no text's length,
-- $6 and $7 only rows after this one (available_at, outbox_id), null for all,
-- $8 with this many lost claims a note is claimed alone, $9 with this many it is not claimed,
-- $10 only rows that became due within so many seconds, null for all,
-- $11 whether the claim counts as lost if its lease expires

-- Rows without a version are for the active one. Workers do not claim for a retired version.
with recursive me as materialized (
    select v.state = 'active' as is_active
      from index_versions v
     where v.embedding_version = $1 and v.state in ('active', 'building')
),
-- Walks the due rows in order and skips further rows of a note that it has picked: ten thousand rows of one
-- note cost one pass and do not hide other notes. The first row stands before all of them.
picks as (
    select null::uuid as note_id,
           coalesce($6, now() - make_interval(secs => $10), '-infinity'::timestamptz) as available_at,
           coalesce($7, '00000000-0000-0000-0000-000000000000'::uuid) as outbox_id,
           0 as n, array[]::uuid[] as seen, false as alone
      from me
    union all
    select next.note_id, next.available_at, next.outbox_id, p.n + 1, pg_catalog.array_append(p.seen, next.note_id),
           p.n = 0 and coalesce((select s.claims_lost >= $8 from note_index_state s
                                  where s.note_id = next.note_id and s.embedding_version = $1), false)
      from picks p
     cross join me
     cross join lateral elf_next_due($1, me.is_active, p.available_at, p.outbox_id, p.seen,
                                     case when p.n = 0 then $9::int else $8::int end) next
     where p.n < $4 and not p.alone
),
sized as (
    select p.note_id, p.available_at, p.outbox_id,
           sum(p.bytes) over (order by p.n) - p.bytes as bytes_before
      from (select p.note_id, p.n, p.available_at, p.outbox_id,
                   case when $5::bigint >= 0
                        then coalesce((select octet_length(n.text::text) from memory_notes n
                                        where n.note_id = p.note_id), 0)
                        else 0 end as bytes
              from picks p
             where p.n > 0
            offset 0) p
),
batch as materialized (select pg_catalog.nextval('elf_lease_token') as token),
-- Ordered, so that two claims cannot deadlock. A claim that waited for another one finds the note
-- leased, or its own token too old.
leased as (
    insert into note_index_state as s (note_id, embedding_version, lease_token, leased_at, lease_until, holder)
    select z.note_id, $1, b.token, now(), now() + make_interval(secs => $3), case when $11 then $2 end
      from sized z
     cross join batch b
     where z.bytes_before < $5::bigint or $5::bigint < 0
     order by z.note_id
    on conflict (note_id, embedding_version) do update
       set lease_token = excluded.lease_token,
           leased_at = excluded.leased_at,
           lease_until = excluded.lease_until,
           holder = excluded.holder,
           -- Every end of a claim clears the holder. If there is another one, its claim was lost, unless
           -- it was the clock that ended it. This worker lives: what it holds it could not release.
           claims_lost = s.claims_lost
               + case when s.holder is null or s.holder = $2
                        or s.leased_at > clock_timestamp() then 0 else 1 end
     where (s.lease_until is null or s.lease_until <= now() or s.leased_at > clock_timestamp())
       and s.lease_token < excluded.lease_token
    returning s.note_id, s.lease_token, s.failures, s.failed_sha256, s.claims_lost,
              s.access_sha256, s.chunk_count, s.text_sha256
),
-- A claimed row without a version is for the versions that are being built too. The claim copies
-- it for each of them and sets its own version on the row, so that no later claim copies it
-- again. This statement may not see a version that is registered meanwhile. That is safe, because
-- every note is enqueued for a version after its registration. A row for later stays as it is: the claim
-- that takes it when it is due copies it.
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
       and o.status <> 'DONE' and o.status <> 'DEAD'
       and elf_is_for_now(o)
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
       l.text_sha256,
       -- An application may write '-infinity', which no Rust timestamp can hold.
       greatest(l.available_at, '0001-01-01 00:00+00') as "picked_at!",
       l.outbox_id as "picked_id!",
       (select count(*) from sized) as "picks!",
       greatest(r.oldest, '0001-01-01 00:00+00') as "oldest!"
  -- A full join, because Postgres could make a join of few rows a nested loop, which compares each note
  -- with each other one.
  from (select l.*, z.available_at, z.outbox_id
          from leased l
          full join sized z using (note_id)
        offset 0) l
 cross join lateral (
        select pg_catalog.array_agg(o.outbox_id order by o.created_at, o.outbox_id) as outbox_ids,
               -- A dead letter waits for an operator, so its age does not count.
               min(o.since) filter (where o.status <> 'DEAD') as oldest
          -- array_agg sorts, not this subquery: to get its order, Postgres might scan a whole
          -- index.
          from (select o.outbox_id, o.created_at, o.status,
                       -- A row that an application scheduled waits since it was due, and a
                       -- failed one since it was written.
                       case when o.status = 'PENDING' then greatest(o.created_at, o.available_at)
                            else o.created_at end as since
                  from elf_open_rows(l.note_id, $1) o
                 where o.embedding_version = $1 or (select is_active from me)
                offset 0) o) r
 where l.note_id is not null
 order by r.oldest
