-- $1 hash of the secret
select key_id, tenant_id, project_id, agent_id, can_write
  from elf_api_keys
 where secret_sha256 = $1 and revoked_at is null
