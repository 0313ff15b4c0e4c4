-- How far an unfinished rebuild has come in each of the ranges of chunk ids that it
-- reads side by side.
create table index_rebuild_ranges (
    collection      text not null references index_collections on delete cascade,
    range_no        int not null,
    -- Every chunk of the range up to here is in the collection.
    cursor          uuid not null,
    upper_bound     uuid not null,
    points          bigint not null default 0,
    missing_vectors bigint not null default 0,
    primary key (collection, range_no)
);
