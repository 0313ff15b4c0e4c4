-- Gives a key another secret. The old one ends at once.
-- $1 key id, $2 hash of the new secret
update elf_api_keys
   set secret_sha256 = $2, rotated_at = now()
 where key_id = $1 and revoked_at is null
