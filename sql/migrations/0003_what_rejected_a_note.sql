-- What rejected a note that failed, in one word: text, provider, postgres or index.
-- `last_error` has it in full. Null where it failed before this column was there.
alter table indexing_outbox add column failed_by text;
