-- How many bytes the texts of those of these notes have that a key reaches.
-- $1 note ids, $2 tenant, $3 project or null for all, $4 agent or null for all
select coalesce(sum(s.bytes), 0)::bigint as "bytes!"
  from pg_catalog.unnest($1::uuid[]) as u (note_id)
 cross join lateral (
        select octet_length(n.text::text) as bytes
          from memory_notes n
         where n.note_id = u.note_id and elf_is_reached(n, $2, $3, $4)
        offset 0) s
