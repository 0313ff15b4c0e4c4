-- What this database says about itself, in one row.
create table elf_schema (
    singleton      boolean primary key default true check (singleton),
    -- The newest migration that a program has to know. An older program may work with the schema of a newer one
    -- that raises nothing here.
    oldest_program bigint not null,
    -- Where the index of this database is: a URL, or a host and a folder.
    index_place    text,
    -- The folder's own id; null for a server.
    index_id       uuid,
    -- The database that the index belongs to: its oid, and the system identifier of its server. A copy
    -- of the database has another one.
    index_owner    text
);
insert into elf_schema (oldest_program) values (1);
