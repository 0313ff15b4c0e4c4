-- memory_notes_expired_idx begins with the same column.
-- oldest program: unchanged

drop index if exists memory_notes_expires_at_idx;
