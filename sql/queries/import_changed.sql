-- Changes those of these notes that differ in what the import names, and says which are live. An equal note is
-- not written, so it is not indexed again. It locks notes in the order of their ids, as every statement does.
-- One array per column. Null names nothing; $8 says whether a key is named, $12 whether a time is, $15 whether
-- a title is. $18 and $19 go together.
with named as materialized (
    select *
      from unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[],
                  $7::text[], $8::bool[], $9::text[], $10::real[], $11::real[], $12::bool[],
                  $13::timestamptz[], $14::jsonb[], $15::bool[], $16::text[], $17::jsonb[],
                  $18::text[], $19::text[])
           as u (note_id, tenant_id, project_id, agent_id, scope, type, key, names_key, text,
                 importance, confidence, names_expiry, expires_at, source_ref,
                 names_title, title, metadata, source, source_id)
),
changed as materialized (
    select n.note_id
      from named u
      join memory_notes n on n.note_id = u.note_id
     where case when n.text is distinct from u.text
        or n.tenant_id::text <> u.tenant_id or n.project_id::text <> u.project_id
        or n.agent_id::text <> u.agent_id or n.scope::text <> u.scope or n.type::text <> u.type
        or u.names_key and n.key is distinct from u.key
        or n.importance::real <> u.importance or n.confidence::real <> u.confidence
        or u.names_expiry and n.expires_at is distinct from u.expires_at
        or n.source_ref <> u.source_ref
        or u.names_title and n.title is distinct from u.title
        or n.metadata <> u.metadata
        or u.source is not null and (n.source::text, n.source_id::text) is distinct from (u.source, u.source_id)
           then elf_may_change(n) end
     -- As text: in the order of the index, Postgres would compare every note of the table with every one of these.
     order by n.note_id::text collate "C"
       for no key update of n
)
update memory_notes n
   set text = u.text, tenant_id = coalesce(u.tenant_id, n.tenant_id),
       project_id = coalesce(u.project_id, n.project_id),
       agent_id = coalesce(u.agent_id, n.agent_id), scope = coalesce(u.scope, n.scope),
       type = coalesce(u.type, n.type),
       key = case when u.names_key then u.key else n.key end,
       importance = coalesce(u.importance, n.importance),
       confidence = coalesce(u.confidence, n.confidence),
       expires_at = case when u.names_expiry then u.expires_at else n.expires_at end,
       source_ref = coalesce(u.source_ref,
                             case when n.text <> u.text then elf_without_cuts(n.source_ref)
                                  else n.source_ref end),
       title = case when u.names_title then u.title else n.title end,
       metadata = coalesce(u.metadata, n.metadata), source = coalesce(u.source, n.source),
       source_id = coalesce(u.source_id, n.source_id), updated_at = now()
  from named u, changed c
 where u.note_id = n.note_id and c.note_id = n.note_id
returning n.note_id, elf_is_live(n) as "is_live!"
