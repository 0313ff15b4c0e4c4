-- Those of these texts that have a vector in the space of these settings, which need
-- not be a registered version's: the same expression makes index_versions.vector_space.
-- $1 settings, $2 text hashes
select distinct c.text_sha256
  from memory_note_chunks c
  join note_chunk_embeddings e using (chunk_id, embedding_version)
 where c.embedding_version = any (array(
           select embedding_version
             from index_versions
            where vector_space = md5(($1::jsonb - array[
                'chunking.tokenizer_repo (SHA-256 of the tokenizer)', 'chunking.enabled',
                'chunking.max_tokens', 'chunking.overlap_tokens'])::text)))
   and c.text_sha256 = any ($2)
