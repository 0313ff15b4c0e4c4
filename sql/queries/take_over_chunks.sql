-- Sets the revision of these notes to the token, and returns their chunks, so that a worker can write
-- their points again with the new labels. This transaction has locked the rows in note_index_state.
-- $1 version, $2 token, $3 note ids
with state as (
    update note_index_state s
       set revision = $2, access_sha256 = null
     where s.note_id = any ($3) and s.embedding_version = $1 and s.lease_token = $2
)
select c.chunk_id, c.note_id, c.chunk_index, c.start_offset, c.end_offset, c.lead, c.text,
       e.vec::vector as "vec?: pgvector::Vector"
  from memory_note_chunks c
  left join lateral elf_vector(c.chunk_id, $1) e on true
 where c.note_id = any ($3)
   and c.embedding_version is not distinct from $1
   and (e.chunk_id is not null or c.awaits_vector)
 order by c.note_id, c.chunk_index
