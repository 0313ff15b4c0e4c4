-- Records which notes of an answer a client read, each once for a search. A search may have been
-- deleted meanwhile.
-- $1 searches, $2 notes, $3 chunks, $4 ranks, $5 scores
insert into memory_hits (trace_id, note_id, chunk_id, rank, score)
select h.*
  from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::int[], $5::real[])
    as h (trace_id, note_id, chunk_id, rank, score)
 where exists (select from search_traces t where t.trace_id = h.trace_id)
    on conflict (trace_id, note_id) do nothing
