-- Deletes a page of the pooled vectors of a version, except those that another transaction has locked.
-- $1 version, $2 note ids above this, $3 rows at most
with page as materialized (
    select note_id
      from note_embeddings
     where embedding_version = $1 and note_id > $2
     order by note_id
     limit $3
),
gone as (
    delete from note_embeddings
     where embedding_version = $1
       and note_id = any (array(
            select note_id
              from note_embeddings
             where embedding_version = $1 and note_id = any (array(select note_id from page))
               for update skip locked))
    returning note_id
)
select note_id as "id!", note_id in (select note_id from gone) as "is_gone!" from page
