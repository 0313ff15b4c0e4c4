-- One vector for each text that has been embedded before, whichever note it is in, and
-- under whichever version of the same vector space.
-- $1 version, $2 text hashes
select distinct on (c.text_sha256) c.text_sha256, e.vec as "vec: pgvector::Vector"
  from memory_note_chunks c
  join note_chunk_embeddings e using (chunk_id, embedding_version)
 where c.embedding_version = any (array(
           select same.embedding_version
             from index_versions v
             join index_versions same using (vector_space)
            where v.embedding_version = $1))
   and c.text_sha256 = any ($2)
