-- no-transaction
-- The open rows of a note, for the claim and for verify: with outbox.retention_secs the
-- index on note_id alone has every done row too.
create index concurrently if not exists indexing_outbox_open_idx
    on indexing_outbox (note_id) where status <> 'DONE';
