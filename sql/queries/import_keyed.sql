-- The notes that have these keys under these labels. One array per column.
select u.place as "place!", k.note_id
  from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[]) with ordinality
       as u (tenant_id, project_id, agent_id, scope, key, place)
 cross join lateral (
       select k.note_id
         from memory_notes k
        where k.key <> '' and k.key = u.key and k.tenant_id = u.tenant_id
          and k.project_id = u.project_id and k.agent_id = u.agent_id and k.scope = u.scope
        limit 1) k
