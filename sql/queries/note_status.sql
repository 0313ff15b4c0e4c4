-- $1 version
select (select count(*) from memory_notes n
         where n.status = 'active' and (n.expires_at is null or n.expires_at > now())) as "live!",
       (select count(*) from memory_notes n
          join note_index_state s on s.note_id = n.note_id and s.embedding_version = $1
         where n.status = 'active' and (n.expires_at is null or n.expires_at > now())
           and s.indexed_at is not null) as "indexed!",
       (select count(*) from memory_note_chunks c
          join memory_notes n on n.note_id = c.note_id
         where c.embedding_version = $1
           and n.status = 'active' and (n.expires_at is null or n.expires_at > now())) as "chunks!"
