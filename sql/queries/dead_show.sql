-- $1 outbox id or note id, $2 whether to read the text of the note
select o.outbox_id, o.note_id, o.op, o.embedding_version, o.attempts,
       coalesce(o.failed_by, 'unknown') as "reason!", o.last_error, o.created_at,
       o.updated_at as died_at,
       case when $2 then left(n.text::text, 500) end as "text_preview?", octet_length(n.text::text) as "text_bytes?"
  from indexing_outbox o
  left join memory_notes n on n.note_id = o.note_id
 where o.status = 'DEAD' and (o.outbox_id = $1 or o.note_id = $1)
 order by o.updated_at desc
