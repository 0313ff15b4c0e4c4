-- $1 outbox or note ids, null for all
delete from indexing_outbox
 where status = 'DEAD' and ($1::uuid[] is null or outbox_id = any ($1) or note_id = any ($1))
