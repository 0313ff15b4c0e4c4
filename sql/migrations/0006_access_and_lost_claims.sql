alter table note_index_state
    -- SHA-256 of the access labels that the note's points have. Null where that is not
    -- known: between a commit and the answer of the vector engine, and before this column
    -- was there.
    add column access_sha256 bytea,
    -- Claims in a row that never ended: their leases ran out, because the worker died.
    add column claims_lost int not null default 0;

alter table index_versions
    -- The worker that sweeps, counts and cleans up for the version, and until when.
    add column upkeep_holder text,
    add column upkeep_until timestamptz;
