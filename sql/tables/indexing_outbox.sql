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
    -- What rejected a note that failed, in one word: text, provider, postgres or index.
    -- `last_error` has it in full.
    failed_by         text,
    available_at      timestamptz not null default now(),
    created_at        timestamptz not null default now(),
    updated_at        timestamptz not null default now()
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
-- The claim reads what is due, oldest first. By version, because with two versions in step one's backlog must not
-- stand between the other's claim and what is due for it.
create index indexing_outbox_due_for_idx
    on indexing_outbox (embedding_version, available_at, outbox_id) where status in ('PENDING', 'FAILED');
-- The open rows of a note. With outbox.retention_secs there may be many that are done.
create index indexing_outbox_open_idx on indexing_outbox (note_id) where status <> 'DONE';
create index indexing_outbox_settled_idx
    on indexing_outbox (status, updated_at) where status in ('DEAD', 'DONE');

-- Wakes idle workers. Equal notifications of one transaction are sent once, but
-- a commit that notifies waits for every other one that does. Where that hurts,
-- `alter database … set elf.notify = off` leaves waking to the workers' polling.
create function elf_outbox_notify() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    if coalesce(current_setting('elf.notify', true), 'on') <> 'off'
       and exists (select from new_rows) then
        perform pg_notify('elf_outbox', '');
    end if;
    return null;
end $$;
revoke all on function elf_outbox_notify() from public;

create trigger elf_outbox_notify after insert on indexing_outbox
    referencing new table as new_rows for each statement execute function elf_outbox_notify();
-- Also for rows of changes that arrive by replication.
alter table indexing_outbox enable always trigger elf_outbox_notify;
