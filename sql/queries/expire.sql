-- Enqueues expired notes that still have points. It looks back for some time, because a worker may
-- have indexed a note while it expired. Scalar subqueries look up one row for each expired note;
-- a join may read both tables in full and find nothing.
-- $1 version, $2 seconds to look back, null for all time
insert into indexing_outbox (note_id, op, embedding_version)
select n.note_id, 'DELETE', $1
  from memory_notes n
 where n.expires_at <= now()
   and n.expires_at > coalesce(now() - make_interval(secs => $2), '-infinity')
   and (select s.chunk_count > 0
          from note_index_state s
         where s.note_id = n.note_id and s.embedding_version = $1)
   and exists (select from index_versions v
                where v.embedding_version = $1 and v.state in ('active', 'building'))
   and (select true
          from indexing_outbox o
         where o.note_id = n.note_id
           -- Not `in ('PENDING', 'FAILED')`: that allows the index on the due rows, and for a table that
           -- it takes for empty Postgres would read all of them for each note.
           and o.status <> 'DONE' and o.status <> 'DEAD'
           and o.available_at <= now()
           and (o.embedding_version = $1
                or o.embedding_version is null
                   and (select v.state = 'active' from index_versions v
                         where v.embedding_version = $1))
         limit 1) is not true
