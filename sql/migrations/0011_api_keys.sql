-- Keys of the HTTP API. A key reaches the notes of one tenant, and of one project or one agent
-- if it is bound to them. Only the hash of its secret is kept.
-- oldest program: unchanged

create table elf_api_keys (
    key_id        uuid primary key default gen_random_uuid(),
    name          text not null,
    -- A secret has 256 random bits, so a plain hash cannot be guessed.
    secret_sha256 bytea not null unique check (octet_length(secret_sha256) = 32),
    tenant_id     text not null,
    project_id    text,
    agent_id      text,
    can_write     boolean not null,
    created_at    timestamptz not null default now(),
    rotated_at    timestamptz,
    revoked_at    timestamptz
);

-- Default privileges of the schema may have granted rights: a role that can insert a row here has
-- a key of its own making.
do $$
declare
    grantee oid;
begin
    for grantee in
        select distinct a.grantee
          from pg_catalog.pg_class c
         cross join lateral pg_catalog.aclexplode(c.relacl) a
         where c.oid = 'elf_api_keys'::pg_catalog.regclass and a.grantee <> c.relowner
    loop
        execute pg_catalog.format(
            'revoke all on elf_api_keys from %s',
            case when grantee = 0 then 'public' else grantee::pg_catalog.regrole::text end);
    end loop;
end
$$;
