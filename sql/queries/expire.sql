-- Notes whose time has passed while their points are still there. Looks back a
-- while, because a note may have been indexed across its own expiry.
-- $1 version, $2 seconds to look back, null for all time
insert into indexing_outbox (note_id, op, embedding_version)
select n.note_id, 'DELETE', $1
  from memory_notes n
  join note_index_state s on s.note_id = n.note_id and s.embedding_version = $1
 where n.expires_at <= now()
   and ($2::double precision is null or n.expires_at > now() - make_interval(secs => $2))
   and s.chunk_count > 0
   and exists (select from index_versions v
                where v.embedding_version = $1 and v.state in ('active', 'building'))
   and not exists (select from indexing_outbox o
                    where o.note_id = n.note_id and o.status in ('PENDING', 'FAILED')
                      and o.available_at <= now()
                      and (o.embedding_version = $1
                           or o.embedding_version is null
                              and (select v.state = 'active' from index_versions v
                                    where v.embedding_version = $1)))
