-- Which notes of an answer a client then read. A note counts once for a search, and goes with it.
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
