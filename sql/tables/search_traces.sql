-- What searches over the HTTP API did. Kept for `search.trace_days`; rows name notes and chunks, and hold no text
-- of theirs.
create table search_traces (
    trace_id          uuid primary key,
    -- Who searched: another key reads the trace only if it reaches all that this one reached.
    key_id            uuid not null,
    tenant_id         text not null,
    project_id        text,
    agent_id          text,
    query             text not null,
    -- `by`, `limit`, `rerank` and `filter`, as they were asked for.
    request           jsonb not null,
    embedding_version text not null,
    degraded          text[] not null,
    candidates        int not null,
    -- Candidates that Postgres did not confirm.
    dropped           int not null,
    -- Milliseconds of each stage.
    took_ms           jsonb not null,
    created_at        timestamptz not null default now()
);
create index search_traces_age on search_traces (created_at);
