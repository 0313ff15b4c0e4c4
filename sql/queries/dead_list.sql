-- $1 rows at most
select o.outbox_id, o.note_id, o.op, o.embedding_version, o.attempts, o.last_error, o.created_at,
       o.updated_at as died_at, null::text as text_preview, null::int as text_bytes
  from indexing_outbox o
 where o.status = 'DEAD'
 order by o.updated_at desc, o.outbox_id
 limit $1
