-- The latest dead letters.
-- $1 outbox id or note id, null for all, $2 rows at most, null for all, $3 whether to read the texts of the notes
select o.outbox_id, o.note_id, o.op, o.embedding_version, o.attempts,
       coalesce(o.failed_by, 'unknown') as "reason!", o.last_error, o.created_at,
       o.updated_at as died_at, n.key::text as "key?", elf_title(n.title::text) as "title?",
       case when $3 then left(n.text::text, 500) end as "text_preview?", octet_length(n.text::text) as "text_bytes?"
  from (select * from indexing_outbox
         where status = 'DEAD' and ($1::uuid is null or outbox_id = $1 or note_id = $1)
         order by updated_at desc, outbox_id
         limit $2) o
  left join memory_notes n on n.note_id = o.note_id
 order by o.updated_at desc, o.outbox_id
