-- memory_note_chunks_vector_of_text_idx begins with the same columns.
-- oldest program: unchanged

drop index memory_note_chunks_text_idx;
