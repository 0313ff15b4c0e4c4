-- What the death of a worker and a clock that goes back must not hold up.

-- When the lease was taken or renewed. If that is ahead, the clock of Postgres has gone back since, and the
-- lease says nothing.
alter table note_index_state add column leased_at timestamptz;

-- Which worker does the upkeep of a version. A table of its own: the lease is renewed every other second, and
-- every claim reads index_versions.
create table index_upkeep (
    embedding_version text primary key references index_versions on delete cascade,
    holder            text not null,
    lease_until       timestamptz not null
) with (fillfactor = 10);

alter table index_versions
    drop column upkeep_holder,
    drop column upkeep_until;

update elf_schema set oldest_program = 24;
