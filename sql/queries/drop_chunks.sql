-- Deletes a page of the chunks of a version, except those that another transaction has locked. A foreign key
-- deletes their vectors.
-- $1 version, $2 chunk ids above this, $3 rows at most
with page as materialized (
    select chunk_id
      from memory_note_chunks
     where embedding_version = $1 and chunk_id > $2
     order by chunk_id
     limit $3
),
gone as (
    delete from memory_note_chunks
     where embedding_version is not distinct from $1
       and chunk_id = any (array(
            select chunk_id
              from memory_note_chunks
             where embedding_version is not distinct from $1 and chunk_id = any (array(select chunk_id from page))
               for update skip locked))
    returning chunk_id
)
select chunk_id as "id!", chunk_id in (select chunk_id from gone) as "is_gone!" from page
