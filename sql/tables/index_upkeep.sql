-- Which worker does the upkeep of a version. A table of its own: the lease is renewed every other second, and
-- every claim reads index_versions.
create table index_upkeep (
    embedding_version text primary key references index_versions on delete cascade,
    holder            text not null,
    lease_until       timestamptz not null
) with (fillfactor = 10);
