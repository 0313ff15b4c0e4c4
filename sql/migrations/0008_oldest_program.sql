-- Which programs may go on with this schema while an upgrade is under way. A migration
-- that an older program cannot work with says so in its own transaction:
--
--     update elf_schema set oldest_program = 12;
--
-- Any other one has the comment `-- oldest program: unchanged`, so that its author has
-- thought of it.

create table elf_schema (
    only_one       boolean primary key default true check (only_one),
    -- The newest migration that a program has to know.
    oldest_program bigint not null
);
insert into elf_schema (oldest_program) values (8);
