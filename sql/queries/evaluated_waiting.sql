-- Notes of an evaluation that are not indexed yet, and those of them that are dead-lettered.
-- $1 tenant, $2 the agent of evaluations, $3 version
select count(*) as "waiting!", count(*) filter (where o.is_dead) as "dead!"
  from memory_notes n
 cross join lateral (
        select bool_or(o.status = 'DEAD') as is_dead
          from indexing_outbox o
         where o.note_id = n.note_id and o.status <> 'DONE'
           and (o.embedding_version = $3
                or o.embedding_version is null
                   and exists (select from index_versions v
                                where v.embedding_version = $3 and v.state = 'active'))
        having count(*) > 0) o
 where n.tenant_id::text = $1 and n.agent_id::text = $2
