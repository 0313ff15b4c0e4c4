-- The candidates of a search, and how they were ranked.
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
