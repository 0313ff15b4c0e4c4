-- $1 note ids, $2 bytes of text at most: a longer text is not read
select n.note_id as "note_id!",
       case when n.text_bytes <= $2 then n.text else '' end as "text!",
       coalesce(n.text_bytes, 0) as "text_bytes!",
       n.status as "status!", n.expires_at, n.tenant_id as "tenant_id!", n.project_id as "project_id!",
       n.agent_id as "agent_id!", n.scope as "scope!", n.kind as "kind!", n.key, n.title,
       n.importance as "importance!", n.confidence as "confidence!", n.updated_at as "updated_at!",
       now() as "now!"
  from pg_catalog.unnest($1::uuid[]) as u (note_id)
 cross join lateral elf_note(u.note_id) n
