-- The vectors of chunks. No fixed dimension, so that two versions of different size can live side by side.
create table note_chunk_embeddings (
    chunk_id          uuid not null,
    embedding_version text not null,
    embedding_dim     int not null,
    vec               vector not null,
    created_at        timestamptz not null default now(),
    primary key (chunk_id, embedding_version),
    foreign key (chunk_id, embedding_version)
        references memory_note_chunks (chunk_id, embedding_version) on delete cascade,
    check (vector_dims(vec) = embedding_dim)
);
