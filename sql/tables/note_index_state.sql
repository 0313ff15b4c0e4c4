-- Who indexes a note, and what was last indexed. No index but the key and room
-- on every page, so that taking and ending a lease are HOT updates. No foreign
-- key: a claim must never make an application's delete wait.
create table note_index_state (
    note_id           uuid not null,
    embedding_version text not null,
    lease_token       bigint not null,
    -- When the lease was taken or renewed. If that is ahead, the clock of Postgres has gone back since, and the
    -- lease says nothing.
    leased_at         timestamptz,
    lease_until       timestamptz,
    holder            text,
    -- Claims in a row that never ended: their leases ran out, because the worker died.
    claims_lost       int not null default 0,
    -- The revision of the note's points. An edit of its labels alone rewrites no chunk.
    revision          bigint,
    -- That of the last ack. If it is `revision`, the index has confirmed all points of the note.
    indexed_revision  bigint,
    indexed_at        timestamptz,
    text_sha256       bytea,
    -- SHA-256 of the access labels that the note's points have. Null where that is not
    -- known: between a commit and the answer of the vector engine.
    access_sha256     bytea,
    chunk_count       int not null default 0,
    -- The text that failed last, and how often in a row: a new outbox row for the
    -- same text is no new chance.
    failed_sha256     bytea,
    failures          int not null default 0,
    primary key (note_id, embedding_version)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);

-- Tokens come from one sequence, so that a note's token rises for ever even
-- though its row goes when the note does.
create sequence elf_lease_token;
