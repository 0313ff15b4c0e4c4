-- The mean of a note's chunk vectors.
create table note_embeddings (
    note_id           uuid not null references memory_notes (note_id) on delete cascade,
    embedding_version text not null,
    embedding_dim     int not null,
    vec               vector not null,
    updated_at        timestamptz not null default now(),
    primary key (note_id, embedding_version),
    check (vector_dims(vec) = embedding_dim)
);
