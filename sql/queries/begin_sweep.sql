-- Begins a worker's own verify when one is due or demanded, or goes on with one whose
-- worker died. One worker of all gets a row.
-- $1 version, $2 seconds between two of them, null for only those that are demanded,
-- $3 lease seconds
update index_versions v
   set swept_at = case when going_on then v.swept_at else now() end,
       sweep_demanded = v.sweep_demanded and going_on,
       sweep_chunks_upto = coalesce(v.sweep_chunks_upto, '00000000-0000-0000-0000-000000000000'),
       sweep_notes_upto = coalesce(v.sweep_notes_upto, '00000000-0000-0000-0000-000000000000'),
       sweep_number = v.sweep_number + 1,
       sweep_until = now() + make_interval(secs => $3)
  from (select embedding_version, sweep_demanded, sweep_chunks_upto is not null as going_on
          from index_versions
         where embedding_version = $1 and state = 'active'
           and coalesce(sweep_until <= now(), true)
           and (sweep_chunks_upto is not null or sweep_demanded
                or coalesce(swept_at, created_at) <= now() - make_interval(secs => $2))
           for update skip locked) due
 where v.embedding_version = due.embedding_version
returning v.sweep_chunks_upto as "chunks_upto!", v.sweep_notes_upto as "notes_upto!",
          v.sweep_number as "number!", due.sweep_demanded as "is_demanded!"
