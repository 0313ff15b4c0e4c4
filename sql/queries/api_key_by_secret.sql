-- $1 hash of the secret, $2 the version that this process serves
select k.key_id, k.tenant_id, k.project_id, k.agent_id, k.can_write,
       -- Before the first worker has run, no version is active.
       exists (select from index_versions v
                where v.state = 'active' and v.embedding_version <> $2) as "is_replaced!"
  from elf_api_keys k
 where k.secret_sha256 = $1 and k.revoked_at is null
