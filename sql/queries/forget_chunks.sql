-- Deletes what is left of deleted notes: a deletion that arrived by logical replication does not follow foreign
-- keys. The vectors of the chunks go with them. A claim of the note comes after this: their states are not
-- deleted yet.
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
pooled as (
    delete from note_embeddings
     where embedding_version = $1 and note_id = any (array(select g.note_id from gone g))
)
delete from memory_note_chunks
 where embedding_version is not distinct from $1
   and chunk_id = any (array(
        select c.chunk_id
          from gone g
         cross join lateral (
                select c.chunk_id
                  from memory_note_chunks c
                 where c.note_id = g.note_id
                   and c.embedding_version is not distinct from $1
                offset 0) c))
