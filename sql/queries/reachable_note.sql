-- A note that a key reaches. A note of another tenant and a note that does not exist take the
-- same look-up.
-- $1 note id, $2 tenant, $3 project or null for all, $4 agent or null for all
select n.note_id as "note_id!", n.tenant_id::text as "tenant_id!",
       n.project_id::text as "project_id!", n.agent_id::text as "agent_id!",
       n.scope::text as "scope!", n.type::text as "kind!", n.key::text as "key?",
       n.text::text as "text!", n.importance::real as "importance!",
       n.confidence::real as "confidence!", n.status::text as "status!",
       -- An application may write 'infinity', which no Rust timestamp can hold.
       least(greatest(n.updated_at, '0001-01-01 00:00+00'), '9999-12-31 00:00+00')
           as "updated_at!",
       least(greatest(n.expires_at, '0001-01-01 00:00+00'), '9999-12-31 00:00+00')
           as "expires_at?",
       exists (
           select from indexing_outbox o
            where o.note_id = n.note_id and o.status in ('PENDING', 'FAILED', 'DEAD')
       ) as "waits!",
       (select o.last_error from indexing_outbox o
         where o.note_id = n.note_id and o.status = 'DEAD'
         order by o.updated_at desc limit 1) as "dead_because?"
  from memory_notes n
 where n.note_id = $1
   and n.tenant_id::text = $2
   and ($3::text is null or n.project_id::text = $3)
   and ($4::text is null or n.agent_id::text = $4)
