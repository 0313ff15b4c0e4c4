-- The notes that have these keys under these labels, and whether the ids that follow from the keys are those of notes
-- with a source: a sync keeps the note of a file that is moved. One array per column.
select u.place as "place!", k.note_id as "note_id?", k.source as "source?", k.source_id as "source_id?",
       d.source is not null as "is_id_taken!"
  from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::uuid[]) with ordinality
       as u (tenant_id, project_id, agent_id, scope, key, note_id, place)
  left join lateral (
       select k.note_id, k.source::text, k.source_id::text
         from memory_notes k
        where k.key <> '' and k.key = u.key and k.tenant_id = u.tenant_id
          and k.project_id = u.project_id and k.agent_id = u.agent_id and k.scope = u.scope
        limit 1) k on true
  left join lateral (
       select d.source from memory_notes d where d.note_id = u.note_id limit 1) d on true
