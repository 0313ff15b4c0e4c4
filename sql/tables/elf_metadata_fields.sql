-- The fields of memory_notes.metadata that searches filter by: [metadata] of elf.toml, as the worker that started last
-- has it. All processes read them here, so that they write the same payloads.
create table elf_metadata_fields (
    name text primary key,
    type text not null
);
