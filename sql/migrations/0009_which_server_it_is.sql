-- oldest program: unchanged

alter table index_versions
    -- The Postgres that workers last saw: system identifier and timeline. Another one than
    -- that was promoted or restored, and may have lost transactions.
    add column server_identity text;
