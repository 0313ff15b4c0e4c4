-- The vectors are deleted by foreign key. In order of the ids, so that no batch scans rows that
-- earlier batches deleted.
-- $1 version, $2 chunk ids above this, $3 rows at most
with gone as (
    delete from memory_note_chunks
     where embedding_version is not distinct from $1 -- see chunk_page.sql
       and chunk_id = any (array(select chunk_id from memory_note_chunks
                                  where embedding_version = $1 and chunk_id > $2
                                  order by chunk_id limit $3))
    returning chunk_id
)
select chunk_id as last, count(*) over () as "chunks!"
  from gone
 order by chunk_id desc
 limit 1
