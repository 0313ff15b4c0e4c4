-- The rebuild, reindex, swap, rollback or drop that is running: one at a time. A
-- lease like a note's, so that one that was killed does not hold up the next for long.
create table index_job (
    singleton   boolean primary key default true check (singleton),
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
