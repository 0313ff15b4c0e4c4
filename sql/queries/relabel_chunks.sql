-- Sets the revision of the chunks of these notes to the token, so that a worker can write their
-- points again with the new labels. This transaction has locked the rows in note_index_state.
-- $1 version, $2 token, $3 note ids
with relabelled as (
    update memory_note_chunks c
       set revision = $2
     where c.note_id = any ($3)
       and c.embedding_version is not distinct from $1 -- see chunk_page.sql
    returning c.chunk_id, c.note_id, c.chunk_index, c.start_offset, c.end_offset, c.text,
              c.awaits_vector
),
state as (
    update note_index_state s
       set revision = $2, access_sha256 = null
     where s.note_id = any ($3) and s.embedding_version = $1 and s.lease_token = $2
)
select r.chunk_id, r.note_id, r.chunk_index, r.start_offset, r.end_offset, r.text,
       e.vec as "vec?: pgvector::Vector"
  from relabelled r
  left join note_chunk_embeddings e on e.chunk_id = r.chunk_id and e.embedding_version = $1
 where e.chunk_id is not null or r.awaits_vector
 order by r.note_id, r.chunk_index
