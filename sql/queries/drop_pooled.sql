-- See drop_states.sql.
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
     where embedding_version = $1 and note_id = any (array(select note_id from page))
)
select note_id from page order by note_id desc limit 1
