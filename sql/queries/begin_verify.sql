-- Begins a worker's own verify when one is due or requested, or resumes one whose worker died.
-- Only one of the workers gets a row.
-- $1 version, $2 seconds between two verifies, null to begin only requested ones,
-- $3 lease seconds
update index_versions v
   set verify_started_at = case when going_on then v.verify_started_at else now() end,
       verify_requested = v.verify_requested and going_on,
       verify_chunks_cursor = coalesce(v.verify_chunks_cursor, '00000000-0000-0000-0000-000000000000'),
       verify_notes_cursor = coalesce(v.verify_notes_cursor, '00000000-0000-0000-0000-000000000000'),
       verify_number = v.verify_number + 1,
       verify_lease_until = now() + make_interval(secs => $3)
  from (select embedding_version, verify_requested, verify_chunks_cursor is not null as going_on
          from index_versions
         where embedding_version = $1 and state = 'active'
           and elf_is_free(verify_lease_until, $3)
           and (verify_chunks_cursor is not null or verify_requested
                or coalesce(verify_started_at, created_at) <= now() - make_interval(secs => $2)
                -- It began before the clock went back.
                or $2 is not null and verify_started_at > now())
           for update skip locked) due
 where v.embedding_version = due.embedding_version
returning v.verify_chunks_cursor as "chunks_upto!", v.verify_notes_cursor as "notes_upto!",
          v.verify_number as "number!", due.verify_requested as "is_requested!"
