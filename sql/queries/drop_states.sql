-- In order of the ids, so that no batch scans rows that earlier batches deleted. The last row of the
-- page tells how far it went: another transaction may have deleted the page meanwhile.
-- $1 version, $2 note ids above this, $3 rows at most
with page as materialized (
    select note_id
      from note_index_state
     where embedding_version = $1 and note_id > $2
     order by note_id
     limit $3
),
gone as (
    delete from note_index_state
     where embedding_version = $1 and note_id = any (array(select note_id from page))
)
select note_id from page order by note_id desc limit 1
