-- The vectors are deleted by foreign key. In order of the index, so that no batch scans rows that
-- earlier batches deleted.
-- $1 version, $2 text hashes from this on, $3 rows at most
with gone as (
    delete from memory_note_chunks
     where embedding_version = $1
       and chunk_id in (select chunk_id from memory_note_chunks
                         where embedding_version = $1 and text_sha256 >= $2
                         order by text_sha256 limit $3)
    returning text_sha256
)
select text_sha256 as last, count(*) over () as "chunks!"
  from gone
 order by text_sha256 desc
 limit 1
