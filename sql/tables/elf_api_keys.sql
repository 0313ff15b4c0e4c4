-- Keys of the HTTP API. A key reaches the notes of one tenant, and of one project or one agent
-- if it is bound to them. Only the hash of its secret is kept.
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
