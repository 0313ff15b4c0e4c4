-- oldest program: unchanged
-- The boundaries of chunks do not change the vector of a text either.
alter table index_versions drop column vector_space;
alter table index_versions
    add column vector_space text generated always as (md5((settings - array[
        'chunking.tokenizer_sha256', 'chunking.enabled', 'chunking.boundaries',
        'chunking.max_tokens', 'chunking.overlap_tokens'])::text)) stored;
