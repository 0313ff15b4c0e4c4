-- What searches over the HTTP API did, and which notes a client then read. Kept for
-- `search.trace_days`; rows name notes and chunks, and hold no text of theirs.
-- oldest program: unchanged

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

create table search_trace_items (
    item_id     uuid primary key,
    trace_id    uuid not null references search_traces on delete cascade,
    note_id     uuid not null,
    chunk_id    uuid not null,
    chunk_index int not null,
    -- Of the point that was found.
    revision    bigint not null,
    -- Scores, and ranks from 1. A rank is null in a ranking that did not find the chunk.
    dense       real,
    dense_rank  int,
    bm25        real not null,
    bm25_rank   int,
    -- The point was older than the chunk, so the score is that of the chunk's vector in Postgres.
    rescored    boolean not null,
    fused       real not null,
    fused_rank  int not null,
    rerank      real,
    mmr         real,
    -- In the answer. Null: not in it.
    rank        int
);
create index search_trace_items_trace on search_trace_items (trace_id);

-- A note counts once for a search, and goes with it.
create table memory_hits (
    trace_id   uuid not null references search_traces on delete cascade,
    note_id    uuid not null,
    chunk_id   uuid not null,
    rank       int not null,
    score      real not null,
    created_at timestamptz not null default now(),
    primary key (trace_id, note_id)
);
create index memory_hits_note on memory_hits (note_id, created_at);

-- Default privileges of the schema may have granted rights: queries are private to a tenant.
do $$
declare
    private record;
begin
    for private in
        select distinct c.relname, a.grantee
          from pg_catalog.pg_class c
         cross join lateral pg_catalog.aclexplode(c.relacl) a
         where c.oid in ('search_traces'::pg_catalog.regclass,
                         'search_trace_items'::pg_catalog.regclass,
                         'memory_hits'::pg_catalog.regclass)
           and a.grantee <> c.relowner
    loop
        execute pg_catalog.format(
            'revoke all on %I from %s', private.relname,
            case when private.grantee = 0 then 'public'
                 else private.grantee::pg_catalog.regrole::text end);
    end loop;
end
$$;
