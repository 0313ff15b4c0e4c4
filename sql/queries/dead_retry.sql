-- $1 outbox or note ids, null for all
update indexing_outbox
   set status = 'PENDING', attempts = 0, available_at = now(), updated_at = now()
 where status = 'DEAD' and ($1::uuid[] is null or outbox_id = any ($1) or note_id = any ($1))
