-- The chunks among these that belong to a note which is live now, and whose labels are
-- those that were asked for. A point that a crash left behind has none, and one that was
-- found under its old labels has others by now.
-- $1 version, $2 chunk ids, $3 labels by name
select c.chunk_id, c.note_id, c.chunk_index, c.start_offset, c.end_offset, c.text, n.key::text as key
  from memory_note_chunks c
  join memory_notes n on n.note_id = c.note_id
 where c.chunk_id = any ($2) and c.embedding_version = $1
   and n.status = 'active' and (n.expires_at is null or n.expires_at > now())
   and not exists (
        select from jsonb_each_text($3) wanted
         where wanted.value is distinct from
               case wanted.key
                   when 'tenant_id' then n.tenant_id::text
                   when 'project_id' then n.project_id::text
                   when 'agent_id' then n.agent_id::text
                   when 'scope' then n.scope::text
                   when 'type' then n.type::text
                   when 'key' then n.key::text
                   when 'status' then n.status::text
               end)
