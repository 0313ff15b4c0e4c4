-- $1 name, $2 hash of the secret, $3 tenant, $4 project or null, $5 agent or null, $6 may write
insert into elf_api_keys (name, secret_sha256, tenant_id, project_id, agent_id, can_write)
values ($1, $2, $3, $4, $5, $6)
returning key_id
