-- Those of these notes that a key reaches. A note of another tenant and a note that does not exist
-- take the same look-up.
-- $1 note ids, $2 tenant, $3 project or null for all, $4 agent or null for all,
-- $5 version, $6 bytes of text: a note behind so many is left out and comes without its text.
-- See revalidate.sql for `offset 0`.
select n.note_id as "note_id!", n.tenant_id::text as "tenant_id!",
       -- Null and out of range are as in load_notes.sql.
       coalesce(n.project_id::text, '') as "project_id!",
       coalesce(n.agent_id::text, '') as "agent_id!",
       coalesce(n.scope::text, '') as "scope!", coalesce(n.type::text, '') as "kind!",
       n.key::text as "key?",
       case when u.bytes_before < $6 then coalesce(n.text::text, '') else '' end as "text!",
       u.bytes_before >= $6 as "left_out!",
       (case when abs(n.importance) between 1e-37 and 1e37 then n.importance else 0 end)::real
           as "importance!",
       (case when abs(n.confidence) between 1e-37 and 1e37 then n.confidence else 0 end)::real
           as "confidence!",
       coalesce(n.status::text, '') as "status!",
       least(greatest(coalesce(n.updated_at, 'epoch'), '0001-01-01 00:00+00'), '9999-12-31 00:00+00')
           as "updated_at!",
       case when n.expires_at is not null
            then least(greatest(n.expires_at, '0001-01-01 00:00+00'), '9999-12-31 00:00+00')
        end as "expires_at?",
       -- A limit, because Postgres would read the whole outbox for `exists`.
       coalesce((select true from indexing_outbox o
                  where o.note_id = n.note_id
                    and (o.status in ('FAILED', 'DEAD')
                         or o.status = 'PENDING' and o.available_at <= greatest(now(), o.created_at))
                    and (o.embedding_version is null or o.embedding_version = $5)
                  limit 1), false) as "waits!",
       -- Not the sentence: it may name hosts.
       (select coalesce(o.failed_by, 'unknown') from indexing_outbox o
         where o.note_id = n.note_id
           -- Not `= 'DEAD'`: see expire.sql.
           and o.status <> 'DONE' and o.status is not distinct from 'DEAD'
           and (o.embedding_version is null or o.embedding_version = $5)
         order by o.updated_at desc limit 1) as "dead_by?"
  from (select u.note_id,
               coalesce(sum(s.bytes) over (order by u.nth rows between unbounded preceding
                                                                   and 1 preceding), 0) as bytes_before
          from unnest($1::uuid[]) with ordinality as u (note_id, nth)
         cross join lateral (
                -- octet_length of a large text does not read the text.
                select octet_length(n.text) as bytes
                  from memory_notes n
                 where n.note_id = u.note_id and n.tenant_id::text = $2
                   and ($3::text is null or n.project_id::text = $3)
                   and ($4::text is null or n.agent_id::text = $4)
                offset 0) s) u
 cross join lateral (
        select * from memory_notes n where n.note_id = u.note_id
        offset 0) n
 where n.tenant_id::text = $2
   and ($3::text is null or n.project_id::text = $3)
   and ($4::text is null or n.agent_id::text = $4)
