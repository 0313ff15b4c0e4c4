-- Those of these notes that a key reaches. A note of another tenant and a note that does not exist
-- take the same look-up.
-- $1 note ids, $2 tenant, $3 project or null for all, $4 agent or null for all,
-- $5 version, $6 bytes of text: a note behind so many is left out and comes without its text.
select n.note_id as "note_id!", n.tenant_id as "tenant_id!", n.project_id as "project_id!",
       n.agent_id as "agent_id!", n.scope as "scope!", n.kind as "kind!", n.key, n.title,
       case when u.bytes_before < $6 then coalesce(n.text, '') else '' end as "text!",
       u.bytes_before >= $6 as "left_out!",
       n.importance as "importance!", n.confidence as "confidence!", n.status as "status!",
       n.updated_at as "updated_at!", n.expires_at,
       elf_shown(n.metadata) as "metadata!: Shown", elf_shown(n.source_ref) as "source_ref!: Shown", n.source, n.source_id,
       (select true from elf_open_rows(n.note_id, $5) limit 1) is not true as "indexed!",
       -- Not the sentence: it may name hosts.
       (select coalesce(o.failed_by, 'unknown') from elf_open_rows(n.note_id, $5) o
         where o.status = 'DEAD' order by o.updated_at desc limit 1) as "dead_letter?"
  from (select u.note_id, sum(s.bytes) over (order by u.nth) - s.bytes as bytes_before
          from pg_catalog.unnest($1::uuid[]) with ordinality as u (note_id, nth)
         cross join lateral (
                select coalesce(octet_length(n.text::text), 0) as bytes
                  from memory_notes n
                 where n.note_id = u.note_id and elf_is_reached(n, $2, $3, $4)
                offset 0) s) u
 cross join lateral elf_note(u.note_id) n
