-- Enqueues for one version every note, and every deleted note that may still have points. Does
-- nothing if that was done before.
-- $1 version, $2 whether to do it again
with due as (
    update index_versions
       set enqueued = true
     where embedding_version = $1 and state in ('active', 'building') and ($2 or not enqueued)
    returning embedding_version
)
insert into indexing_outbox (note_id, op, embedding_version)
select n.note_id, 'UPSERT', d.embedding_version
  from memory_notes n
 cross join due d
 union all
select s.note_id, 'DELETE', d.embedding_version
  from note_index_state s
  join due d using (embedding_version)
 where (select n.note_id from memory_notes n where n.note_id = s.note_id) is null
