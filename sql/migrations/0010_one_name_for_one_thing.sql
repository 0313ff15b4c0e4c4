-- Columns get the names that the code and the documentation use. A program that does not know
-- them cannot continue: stop workers of the older version before `elf migrate`.

alter table index_versions rename column swept_at to verify_started_at;
alter table index_versions rename column sweep_chunks_upto to verify_chunks_cursor;
alter table index_versions rename column sweep_notes_upto to verify_notes_cursor;
alter table index_versions rename column sweep_until to verify_lease_until;
alter table index_versions rename column sweep_demanded to verify_requested;
alter table index_versions rename column sweep_number to verify_number;

alter table index_rebuild_ranges rename column done_upto to cursor;
alter table index_rebuild_ranges rename column ends_at to upper_bound;

alter table index_job rename column only_one to singleton;
alter table elf_schema rename column only_one to singleton;

-- The settings of a version are kept under stable names. They were labels for people.
alter table index_versions drop column vector_space;
update index_versions
   set settings = settings - 'chunking.tokenizer_repo (SHA-256 of the tokenizer)'
                || jsonb_build_object('chunking.tokenizer_sha256',
                       settings -> 'chunking.tokenizer_repo (SHA-256 of the tokenizer)')
 where settings ? 'chunking.tokenizer_repo (SHA-256 of the tokenizer)';
update index_versions
   set settings = settings - 'providers.embedding.model (SHA-256 of the weights)'
                || jsonb_build_object('providers.embedding.weights_sha256',
                       settings -> 'providers.embedding.model (SHA-256 of the weights)')
 where settings ? 'providers.embedding.model (SHA-256 of the weights)';
alter table index_versions
    -- Versions of one space give a text the same vector: they differ only in how notes are
    -- cut. So a vector that is paid for serves all of them.
    add column vector_space text generated always as (md5((settings - array[
        'chunking.tokenizer_sha256', 'chunking.enabled',
        'chunking.max_tokens', 'chunking.overlap_tokens'])::text)) stored;

update elf_schema set oldest_program = 10;
