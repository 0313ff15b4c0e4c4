-- oldest program: unchanged

alter table index_versions
    -- The Postgres that workers last saw: system identifier and timeline. Another one than
    -- that was promoted or restored, and may have lost transactions.
    add column server_identity text,
    -- The worker's own verify that began last. One that another went on with, after it
    -- was paused for longer than its lease, records nothing more.
    add column sweep_number bigint not null default 0;
