-- Those of these notes for which a difference is no drift: a worker will converge them, because
-- they have an outbox row that is not for later, are leased, or have expired and are not enqueued yet. A dead-lettered
-- note counts too: it waits for an operator.
-- $1 version, $2 note ids
select u.note_id as "note_id!"
  from pg_catalog.unnest($2::uuid[]) as u (note_id)
 where (select true from elf_open_rows(u.note_id, $1) limit 1)
    or (select elf_is_leased(s)
               or s.chunk_count > 0
                  and (select n.expires_at <= now() from memory_notes n where n.note_id = u.note_id)
          from note_index_state s
         where s.note_id = u.note_id and s.embedding_version = $1)
