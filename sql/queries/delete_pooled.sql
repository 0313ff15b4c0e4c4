-- Deletes the pooled vectors of notes that have no chunks any more.
-- $1 version, $2 note ids
delete from note_embeddings where embedding_version = $1 and note_id = any ($2)
