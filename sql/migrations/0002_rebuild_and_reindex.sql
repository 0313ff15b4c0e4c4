-- What a rebuild, a verify and a reindex keep on record.

alter table index_versions
    -- When the version came into its state.
    add column state_since timestamptz not null default now(),
    -- Whether every note has been put into the outbox for it since it is kept in
    -- step. It is false between the commit that registers a version and the one that
    -- enqueues; whoever finds it so enqueues.
    add column enqueued boolean not null default true,
    -- When a worker's own verify last began.
    add column swept_at timestamptz,
    -- Versions of one space give a text the same vector: they differ in how notes are
    -- cut, and so a vector that is paid for serves all of them.
    add column vector_space text generated always as (md5((settings - array[
        'chunking.tokenizer_repo (SHA-256 of the tokenizer)', 'chunking.enabled',
        'chunking.max_tokens', 'chunking.overlap_tokens'])::text)) stored;

-- The state of a collection is relative to its version: 'active' is the one that has
-- all of it, 'building' is being filled from it, 'retired' is kept and not written.
create unique index index_collections_one_active
    on index_collections (embedding_version) where state = 'active';

-- How far an unfinished rebuild has come in each of the ranges of chunk ids that it
-- reads side by side.
create table index_rebuild_ranges (
    collection      text not null references index_collections on delete cascade,
    range_no        int not null,
    -- Every chunk of the range up to here is in the collection.
    done_upto       uuid not null,
    ends_at         uuid not null,
    points          bigint not null default 0,
    missing_vectors bigint not null default 0,
    primary key (collection, range_no)
);

-- The rebuild, reindex, swap, rollback or drop that is running: one at a time. A
-- lease like a note's, so that what died stands in nobody's way for long.
create table index_job (
    only_one    boolean primary key default true check (only_one),
    kind        text not null,
    -- The collection or the version it is about.
    subject     text not null,
    holder      text not null,
    started_at  timestamptz not null default now(),
    lease_until timestamptz not null,
    -- Points or notes so far, and in all, as far as that is known.
    done        bigint not null default 0,
    total       bigint not null default 0
);

-- With two versions in step, one's backlog must not stand between the other's claim
-- and what is due for it.
create index indexing_outbox_due_for_idx
    on indexing_outbox (embedding_version, available_at, outbox_id)
 where status in ('PENDING', 'FAILED');
drop index indexing_outbox_due_idx;
