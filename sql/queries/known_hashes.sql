-- Those of these texts that have a vector in the vector space of these settings. The version of the
-- settings need not be registered. index_versions.vector_space has the same expression.
-- $1 settings, $2 text hashes
select distinct c.text_sha256
  from memory_note_chunks c
  join note_chunk_embeddings e using (chunk_id, embedding_version)
 where c.embedding_version = any (array(
           select embedding_version
             from index_versions
            where vector_space = md5(($1::jsonb - array[
                'chunking.tokenizer_sha256', 'chunking.enabled', 'chunking.boundaries',
                'chunking.max_tokens', 'chunking.overlap_tokens'])::text)))
   and c.text_sha256 = any ($2)
