-- A version that is built and answers a share of the searches before it is served (`elf reindex canary`).
create table index_canary (
    embedding_version text primary key references index_versions on delete cascade,
    -- 0 when it has ended.
    share             double precision not null check (share between 0 and 1),
    -- Why ELF ended it.
    ended             text,
    -- What the searches of both versions found, since it began.
    tallies           jsonb not null,
    started_at        timestamptz not null default now()
);
