-- $1 note ids, $2 bytes of text at most: a longer text is not read, $3 bytes of cuts at most
select n.note_id as "note_id!",
       case when n.text_bytes <= $2 then n.text else '' end as "text!",
       case when n.text_bytes <= $2 then elf_cuts(n.source_ref, n.text_bytes, $3) end as cuts,
       coalesce(n.text_bytes, 0) as "text_bytes!",
       n.status as "status!", n.expires_at, n.tenant_id as "tenant_id!", n.project_id as "project_id!",
       n.agent_id as "agent_id!", n.scope as "scope!", n.kind as "kind!", n.key, n.source, n.title,
       n.importance as "importance!", n.confidence as "confidence!", n.updated_at as "updated_at!",
       elf_metadata(n.metadata) as metadata,
       now() as "now!"
  from pg_catalog.unnest($1::uuid[]) as u (note_id)
 cross join lateral elf_note(u.note_id) n
