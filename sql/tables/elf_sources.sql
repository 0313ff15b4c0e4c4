-- The sources of elf.toml whose triggers are installed: tables of the application whose rows are notes.
create table elf_sources (
    source     text primary key,
    -- As regclass shows it, with its schema.
    of_table   text not null,
    -- Of the statements that installed it: another one means that the source or its table has changed since.
    sha256     bytea not null,
    -- Of the functions and triggers that they made: elf_source_objects.
    objects    bytea not null,
    applied_at timestamptz not null default now()
);
-- The rows that are no notes for the reason given. A row leaves when it becomes a note, or is deleted.
create table elf_left_out (
    source    text not null,
    -- The one that it would have. A key may be too long for an index.
    note_id   uuid not null,
    source_id text not null,
    reason    text not null,
    since     timestamptz not null default now(),
    primary key (source, note_id)
);
