-- Which collections of the vector engine hold a version. Writers read it under a share lock in the transaction
-- that commits chunks.
create table index_collections (
    collection        text primary key,
    alias             text not null,
    embedding_version text not null references index_versions,
    -- Relative to its version: 'active' has all of it, 'building' is being filled from it, 'retired' is kept and
    -- not written.
    state             text not null check (state in ('building', 'active', 'retired')),
    created_at        timestamptz not null default now()
);
create unique index index_collections_one_active
    on index_collections (embedding_version) where state = 'active';

-- A collection's number is never given out twice, also after its row is gone.
create sequence elf_collection_number;
