-- How many bytes the texts of those of these notes have that a key reaches.
-- $1 note ids, $2 tenant, $3 project or null for all, $4 agent or null for all
-- See revalidate.sql for `offset 0`.
select coalesce(sum(s.bytes), 0)::bigint as "bytes!"
  from unnest($1::uuid[]) as u (note_id)
 cross join lateral (
        -- octet_length of a large text does not read the text.
        select octet_length(n.text) as bytes
          from memory_notes n
         where n.note_id = u.note_id and n.tenant_id::text = $2
           and ($3::text is null or n.project_id::text = $3)
           and ($4::text is null or n.agent_id::text = $4)
        offset 0) s
