-- memory_notes_expired_idx begins with the same column. An application may have an index of its own by this
-- name, which migration 1 would have left as it was.
-- oldest program: unchanged
do $migration$
begin
    if pg_catalog.pg_get_indexdef(to_regclass('memory_notes_expires_at_idx'))
           ilike '% using btree (expires_at) where (expires_at is not null)' then
        drop index memory_notes_expires_at_idx;
    end if;
end $migration$;
