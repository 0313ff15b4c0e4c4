alter table index_versions
    -- How far the worker's own verify has come, by chunk id and by note id: it goes on
    -- there after a restart. Null while none is under way.
    add column sweep_chunks_upto uuid,
    add column sweep_notes_upto uuid,
    -- Until when the worker that is at it is believed to live.
    add column sweep_until timestamptz,
    -- A worker found that Postgres lost transactions: verify without waiting for the interval.
    add column sweep_demanded boolean not null default false;

-- A collection's number is never given out twice, also after its row is gone.
create sequence elf_collection_number;
select setval('elf_collection_number', max(substring(collection from '__([0-9]{1,9})$')::bigint))
  from index_collections
having max(substring(collection from '__([0-9]{1,9})$')::bigint) > 0;
