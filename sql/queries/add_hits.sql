-- Records which notes of an answer a client read.
-- $1 searches, $2 notes, $3 chunks, $4 ranks, $5 scores
insert into memory_hits (trace_id, note_id, chunk_id, rank, score)
select * from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::int[], $5::real[])
