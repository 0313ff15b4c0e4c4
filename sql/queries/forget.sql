-- Deletes the states of deleted notes whose points are deleted. Later tokens are higher all the same, because they come
-- from a sequence. It deletes what chunks and vectors they have left too: a deletion that arrived by logical replication
-- does not follow foreign keys. A claim of the note waits for this.
-- $1 version, $2 token, $3 note ids
with gone as materialized (
    select s.note_id
      from note_index_state s
     where s.note_id = any ($3) and s.embedding_version = $1 and s.lease_token = $2
       and s.lease_until is null
       and (select n.note_id from memory_notes n where n.note_id = s.note_id) is null
     order by s.note_id
       for update
),
chunks as (
    delete from memory_note_chunks
     where embedding_version is not distinct from $1
       and chunk_id = any (array(
            select c.chunk_id from gone g cross join lateral elf_chunks_of(g.note_id, $1) c))
),
pooled as (
    delete from note_embeddings
     where embedding_version = $1 and note_id = any (array(select g.note_id from gone g))
)
delete from note_index_state
 where embedding_version = $1 and note_id = any (array(select g.note_id from gone g))
