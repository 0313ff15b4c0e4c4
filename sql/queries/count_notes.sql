-- Counts live notes, those of them that were indexed, and their chunks.
-- $1 version
with live as materialized (
    select n.note_id from memory_notes n
     where elf_is_live(n)
)
select (select count(*) from live) as "live!",
       (select count(*) from live n
          join note_index_state s on s.note_id = n.note_id
         where s.embedding_version is not distinct from $1
           and s.indexed_at is not null) as "indexed!",
       (select count(*) from memory_note_chunks c
          join live n on n.note_id = c.note_id
         where c.embedding_version is not distinct from $1) as "chunks!"
