select key_id, name, tenant_id, project_id, agent_id, can_write, created_at, rotated_at,
       revoked_at
  from elf_api_keys
 order by created_at, key_id
