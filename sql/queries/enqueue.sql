-- Null selects every value. A note gets a new row even if one waits: a claim may have read that
-- one already, and then this request would be lost.
-- $1 note ids, $2 tenant, $3 project, $4 agent, $5 scope, $6 type
insert into indexing_outbox (note_id, op)
select n.note_id, 'UPSERT'
  from memory_notes n
 where ($1::uuid[] is null or n.note_id = any ($1))
   and ($2::text is null or n.tenant_id::text = $2)
   and ($3::text is null or n.project_id::text = $3)
   and ($4::text is null or n.agent_id::text = $4)
   and ($5::text is null or n.scope::text = $5)
   and ($6::text is null or n.type::text = $6)
