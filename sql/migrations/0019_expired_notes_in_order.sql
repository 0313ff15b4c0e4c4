-- no-transaction
-- oldest program: unchanged
-- With the id: notes that expire at the same moment are enqueued page by page.
create index concurrently if not exists memory_notes_expired_idx
    on memory_notes (expires_at, note_id) where expires_at is not null;
