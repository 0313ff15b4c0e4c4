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

update elf_schema set oldest_program = 10;
