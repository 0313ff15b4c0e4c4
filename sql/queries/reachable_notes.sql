-- Those of these notes that a key reaches. A note of another tenant and a note that does not exist
-- take the same look-up.
-- $1 note ids, $2 tenant, $3 project or null for all, $4 agent or null for all,
-- $5 version, $6 bytes of text: a note behind so many is left out and comes without its text.
--
select n.note_id as "note_id!", n.tenant_id as "tenant_id!", n.project_id as "project_id!",
       n.agent_id as "agent_id!", n.scope as "scope!", n.kind as "kind!", n.key, n.title,
       case when u.bytes_before < $6 then coalesce(n.text, '') else '' end as "text!",
       u.bytes_before >= $6 as "left_out!",
       n.importance as "importance!", n.confidence as "confidence!", n.status as "status!",
       n.updated_at as "updated_at!", n.expires_at,
       coalesce((select true from indexing_outbox o
                  where o.note_id = n.note_id
                    and o.status <> 'DONE' and elf_is_for_now(o)
                    and (o.embedding_version is null or o.embedding_version = $5)
                  limit 1), false) as "waits!",
       -- Not the sentence: it may name hosts.
       (select coalesce(o.failed_by, 'unknown') from indexing_outbox o
         where o.note_id = n.note_id
           and o.status <> 'DONE' and o.status is not distinct from 'DEAD'
           and (o.embedding_version is null or o.embedding_version = $5)
         order by o.updated_at desc limit 1) as "dead_by?"
  from (select u.note_id,
               coalesce(sum(s.bytes) over (order by u.nth rows between unbounded preceding
                                                                   and 1 preceding), 0) as bytes_before
          from pg_catalog.unnest($1::uuid[]) with ordinality as u (note_id, nth)
         cross join lateral (
                select octet_length(n.text::text) as bytes
                  from memory_notes n
                 where n.note_id = u.note_id and elf_is_reached(n, $2, $3, $4)
                offset 0) s) u
 cross join lateral elf_note(u.note_id) n
