-- no-transaction
-- oldest program: unchanged
-- With `awaits_vector`, because a look-up of a text's vector must not read the chunks that have none:
-- there may be thousands of the same text.
create index concurrently if not exists memory_note_chunks_vector_of_text_idx
    on memory_note_chunks (embedding_version, text_sha256, awaits_vector);
