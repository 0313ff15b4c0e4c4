-- One row per embedding version: a name for everything that shapes a vector.
create table index_versions (
    embedding_version    text primary key,
    embedding_dim        int not null check (embedding_dim > 0),
    -- The settings behind the name, for the message that says what differs.
    settings             jsonb not null,
    -- Versions of one space give a text the same vector: they differ only in how notes are
    -- cut. So a vector that is paid for serves all of them.
    vector_space         text generated always as (md5(
        jsonb_path_query_array(settings, '$.keyvalue() ? (!(@.key starts with "chunking.")).key'::jsonpath)::text
        || jsonb_path_query_array(settings, '$.keyvalue() ? (!(@.key starts with "chunking.")).value'::jsonpath)::text)) stored,
    state                text not null check (state in ('building', 'active', 'retired')),
    -- When the version came into its state.
    state_since          timestamptz not null default now(),
    -- Whether every note was enqueued for it since it was registered or resumed. It is
    -- false between the commit that registers a version and the one that enqueues;
    -- whichever process finds it false enqueues.
    enqueued             boolean not null default true,
    -- The worker's own verify that began last, and when. A worker that was paused for longer than its lease
    -- records nothing more: another one goes on with its verify.
    verify_number        bigint not null default 0,
    verify_started_at    timestamptz,
    -- When the lease of the worker that verifies expires.
    verify_lease_until   timestamptz,
    -- How far it has come, by chunk id and by note id: it goes on there after a restart. Null while none
    -- is under way.
    verify_chunks_cursor uuid,
    verify_notes_cursor  uuid,
    -- A worker found that Postgres lost transactions: verify without waiting for the interval.
    verify_requested     boolean not null default false,
    -- The Postgres that workers last saw: system identifier and timeline. Another one than
    -- that was promoted or restored, and may have lost transactions.
    server_identity      text,
    created_at           timestamptz not null default now()
);
create unique index index_versions_one_active on index_versions (state) where state = 'active';
