-- $1 version
select count(*) as "count!"
  from memory_note_chunks c
  join memory_notes n on n.note_id = c.note_id
  left join note_chunk_embeddings e
         on e.chunk_id = c.chunk_id and e.embedding_version = c.embedding_version
 where c.embedding_version is not distinct from $1
   and (e.chunk_id is not null or c.awaits_vector)
   and elf_is_live(n)
