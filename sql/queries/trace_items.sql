-- The chunks that a search looked at: those of the answer first, then in the order of their scores.
-- $1 trace id
select i.item_id, i.note_id, i.chunk_id, i.chunk_index, i.revision, i.dense, i.dense_rank, i.bm25,
       i.bm25_rank, i.rescored, i.fused, i.fused_rank, i.rerank, i.mmr, i.rank
  from search_trace_items i
 where i.trace_id = $1
 order by i.rank nulls last, i.fused desc, i.chunk_id
