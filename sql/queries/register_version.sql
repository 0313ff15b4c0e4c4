-- The first version of a database is active at once.
-- $1 version, $2 dimension, $3 settings
insert into index_versions (embedding_version, embedding_dim, settings, state)
values ($1, $2, $3, 'active')
