-- oldest program: unchanged

alter table elf_schema
    -- Where the index of this database is: a URL, or a host and a folder.
    add column index_place text,
    -- The folder's own id; null for a server.
    add column index_id uuid,
    -- The database that the index belongs to: its oid, and the system identifier of its server. A copy
    -- of the database has another one.
    add column index_owner text;
