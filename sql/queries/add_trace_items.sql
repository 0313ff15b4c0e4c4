-- Records the chunks that searches looked at. The arrays have one value for each chunk.
insert into search_trace_items
       (item_id, trace_id, note_id, chunk_id, chunk_index, revision, dense, dense_rank, bm25,
        bm25_rank, rescored, fused, fused_rank, rerank, mmr, rank)
select *
  from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::uuid[], $5::int[], $6::bigint[], $7::real[],
              $8::int[], $9::real[], $10::int[], $11::boolean[], $12::real[], $13::int[],
              $14::real[], $15::real[], $16::int[])
