-- In order of the ids, so that no batch scans rows that earlier batches deleted.
-- $1 version, $2 note ids above this, $3 rows at most
with gone as (
    delete from note_embeddings
     where embedding_version = $1
       and note_id = any (array(select note_id from note_embeddings
                                 where embedding_version = $1 and note_id > $2
                                 order by note_id limit $3))
    returning note_id
)
select note_id from gone order by note_id desc limit 1
