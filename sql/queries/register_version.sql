-- $1 version, $2 dimension, $3 settings, $4 state, $5 whether every note is enqueued for it
insert into index_versions (embedding_version, embedding_dim, settings, state, enqueued)
values ($1, $2, $3, $4, $5)
