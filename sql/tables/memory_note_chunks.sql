-- Slices of the notes' texts, in each version that is kept.
create table memory_note_chunks (
    chunk_id          uuid not null,
    note_id           uuid not null references memory_notes (note_id) on delete cascade,
    chunk_index       int not null check (chunk_index >= 0),
    -- UTF-8 byte offsets into the note's text.
    start_offset      int not null check (start_offset >= 0),
    end_offset        int not null check (end_offset > start_offset),
    -- The piece of the note that it was cut from, with `chunking.parent_tokens`.
    parent_start_offset int check (parent_start_offset <= start_offset),
    parent_end_offset   int check (parent_end_offset >= end_offset),
    text              text not null,
    -- What is embedded before the text: a line of headings, the header of the table that it continues.
    lead              text not null default '',
    -- Of the lead and the text.
    text_sha256       bytea not null check (octet_length(text_sha256) = 32),
    embedding_version text not null,
    -- It is found by keyword alone, because the provider cannot make its vector yet
    -- (`worker.bm25_first`). Its note is due as before.
    awaits_vector     boolean not null default false,
    -- The lease token under which the row was written.
    revision          bigint not null,
    created_at        timestamptz not null default now(),
    primary key (chunk_id, embedding_version)
);
create index memory_note_chunks_note_idx on memory_note_chunks (note_id, chunk_index);
-- With `awaits_vector`, because a look-up of a text's vector must not read the chunks that have none:
-- there may be thousands of the same text.
create index memory_note_chunks_vector_of_text_idx
    on memory_note_chunks (embedding_version, text_sha256, awaits_vector);
