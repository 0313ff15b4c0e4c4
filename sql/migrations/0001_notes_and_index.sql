-- The tables that ELF and an application share, and those that are ELF's own.
-- What an application may write is described in sql/README.md.

create extension if not exists vector;

-- The application's table. When it exists already, in whichever schema of search_path, it is kept as it is,
-- and `elf migrate` has checked that it has what ELF reads.
do $$
begin
    if to_regclass('memory_notes') is null then
        create table memory_notes (
            note_id           uuid primary key default gen_random_uuid(),
            tenant_id         text not null,
            project_id        text not null,
            agent_id          text not null,
            scope             text not null,
            type              text not null,
            key               text,
            text              text not null,
            importance        real not null default 0.5,
            confidence        real not null default 1.0,
            status            text not null default 'active',
            created_at        timestamptz not null default now(),
            updated_at        timestamptz not null default now(),
            expires_at        timestamptz,
            embedding_version text,
            source_ref        jsonb not null default '{}'
        );
    end if;
end $$;

-- The expiry sweep reads this index and nothing else.
create index if not exists memory_notes_expires_at_idx
    on memory_notes (expires_at) where expires_at is not null;

-- One row per embedding version: a name for everything that shapes a vector.
create table index_versions (
    embedding_version text primary key,
    embedding_dim     int not null check (embedding_dim > 0),
    -- The settings behind the name, for the message that says what differs.
    settings          jsonb not null,
    state             text not null check (state in ('building', 'active', 'retired')),
    created_at        timestamptz not null default now()
);
create unique index index_versions_one_active on index_versions (state) where state = 'active';

-- Which Qdrant collections hold a version. Writers read it under a share lock
-- in the transaction that commits chunks.
create table index_collections (
    collection        text primary key,
    alias             text not null,
    embedding_version text not null references index_versions,
    state             text not null check (state in ('building', 'active', 'retired')),
    created_at        timestamptz not null default now()
);

create table memory_note_chunks (
    chunk_id          uuid not null,
    note_id           uuid not null references memory_notes (note_id) on delete cascade,
    chunk_index       int not null check (chunk_index >= 0),
    -- UTF-8 byte offsets into the note's text.
    start_offset      int not null check (start_offset >= 0),
    end_offset        int not null check (end_offset > start_offset),
    text              text not null,
    text_sha256       bytea not null check (octet_length(text_sha256) = 32),
    embedding_version text not null,
    -- The lease token under which the row was written.
    revision          bigint not null,
    created_at        timestamptz not null default now(),
    primary key (chunk_id, embedding_version)
);
create index memory_note_chunks_note_idx on memory_note_chunks (note_id, chunk_index);
create index memory_note_chunks_text_idx on memory_note_chunks (embedding_version, text_sha256);

create table note_chunk_embeddings (
    chunk_id          uuid not null,
    embedding_version text not null,
    embedding_dim     int not null,
    vec               vector not null,
    created_at        timestamptz not null default now(),
    primary key (chunk_id, embedding_version),
    foreign key (chunk_id, embedding_version)
        references memory_note_chunks (chunk_id, embedding_version) on delete cascade,
    check (vector_dims(vec) = embedding_dim)
);

-- The mean of a note's chunk vectors.
create table note_embeddings (
    note_id           uuid not null references memory_notes (note_id) on delete cascade,
    embedding_version text not null,
    embedding_dim     int not null,
    vec               vector not null,
    updated_at        timestamptz not null default now(),
    primary key (note_id, embedding_version),
    check (vector_dims(vec) = embedding_dim)
);

-- "This note changed", written in the application's own transaction.
create table indexing_outbox (
    outbox_id         uuid primary key default gen_random_uuid(),
    note_id           uuid not null,
    op                text not null default 'UPSERT' check (op in ('UPSERT', 'DELETE')),
    -- Null is for whichever version is active.
    embedding_version text,
    status            text not null default 'PENDING'
                      check (status in ('PENDING', 'FAILED', 'DEAD', 'DONE')),
    attempts          int not null default 0,
    last_error        text,
    available_at      timestamptz not null default now(),
    created_at        timestamptz not null default now(),
    updated_at        timestamptz not null default now()
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
-- The claim reads what is due, oldest first.
create index indexing_outbox_due_idx
    on indexing_outbox (available_at, outbox_id) where status in ('PENDING', 'FAILED');
create index indexing_outbox_note_idx on indexing_outbox (note_id);
create index indexing_outbox_settled_idx
    on indexing_outbox (status, updated_at) where status in ('DEAD', 'DONE');

-- Tokens come from one sequence, so that a note's token rises for ever even
-- though its row goes when the note does.
create sequence elf_lease_token;

-- Who indexes a note, and what was last indexed. No index but the key and room
-- on every page, so that taking and ending a lease are HOT updates. No foreign
-- key: a claim must never make an application's delete wait.
create table note_index_state (
    note_id           uuid not null,
    embedding_version text not null,
    lease_token       bigint not null,
    lease_until       timestamptz,
    holder            text,
    revision          bigint,
    text_sha256       bytea,
    chunk_count       int not null default 0,
    indexed_at        timestamptz,
    -- The text that failed last, and how often in a row: a new outbox row for the
    -- same text is no new chance.
    failed_sha256     bytea,
    failures          int not null default 0,
    primary key (note_id, embedding_version)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);

-- Applications need rights on memory_notes alone: the functions run as their owner.
-- Their search path is set below, because it has to be a literal.

create function elf_note_inserted() returns trigger
language plpgsql security definer as $$
begin
    insert into indexing_outbox (note_id, op) select note_id, 'UPSERT' from new_rows;
    return null;
end $$;

-- Only a change that a search can see is a change: an application may count
-- hits in a column of its own without indexing the note again.
create function elf_note_updated() returns trigger
language plpgsql security definer as $$
begin
    insert into indexing_outbox (note_id, op)
    select n.note_id, 'UPSERT'
      from new_rows n
      left join old_rows o on o.note_id = n.note_id
     where o.note_id is null
        or (o.text, o.status, o.expires_at, o.tenant_id, o.project_id, o.agent_id, o.scope,
            o.type, o.key, o.importance, o.confidence, o.updated_at)
           is distinct from
           (n.text, n.status, n.expires_at, n.tenant_id, n.project_id, n.agent_id, n.scope,
            n.type, n.key, n.importance, n.confidence, n.updated_at)
    union all
    select o.note_id, 'DELETE'
      from old_rows o
      left join new_rows n on n.note_id = o.note_id
     where n.note_id is null;
    return null;
end $$;

create function elf_note_deleted() returns trigger
language plpgsql security definer as $$
begin
    insert into indexing_outbox (note_id, op) select note_id, 'DELETE' from old_rows;
    return null;
end $$;

create function elf_notes_truncated() returns trigger
language plpgsql security definer as $$
begin
    insert into indexing_outbox (note_id, op) select distinct note_id, 'DELETE' from note_index_state;
    return null;
end $$;

create trigger elf_note_inserted after insert on memory_notes
    referencing new table as new_rows for each statement execute function elf_note_inserted();
create trigger elf_note_updated after update on memory_notes
    referencing old table as old_rows new table as new_rows
    for each statement execute function elf_note_updated();
create trigger elf_note_deleted after delete on memory_notes
    referencing old table as old_rows for each statement execute function elf_note_deleted();
create trigger elf_notes_truncated after truncate on memory_notes
    for each statement execute function elf_notes_truncated();

-- pg_temp comes last, and by name: it would be first otherwise, and then whoever may
-- write a note could put a table of their own in the place of the outbox and have
-- its triggers run as the owner of these functions.
do $$
declare
    name text;
begin
    foreach name in array array['elf_note_inserted', 'elf_note_updated', 'elf_note_deleted',
                                'elf_notes_truncated'] loop
        execute format('alter function %I() set search_path = %I, pg_temp', name, current_schema());
    end loop;
end $$;

-- Wakes idle workers. Equal notifications of one transaction are sent once, but
-- a commit that notifies waits for every other one that does: where that hurts,
-- `alter database … set elf.notify = off` leaves waking to the workers' polling.
create function elf_outbox_notify() returns trigger
language plpgsql as $$
begin
    if coalesce(current_setting('elf.notify', true), 'on') <> 'off'
       and exists (select from new_rows) then
        perform pg_notify('elf_outbox', '');
    end if;
    return null;
end $$;

create trigger elf_outbox_notify after insert on indexing_outbox
    referencing new table as new_rows for each statement execute function elf_outbox_notify();

-- Notes that were there before ELF was.
insert into indexing_outbox (note_id, op) select note_id, 'UPSERT' from memory_notes;
