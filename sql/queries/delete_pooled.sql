-- Notes that have no chunk any more have no vector either.
-- $1 version, $2 note ids
delete from note_embeddings where embedding_version = $1 and note_id = any ($2)
