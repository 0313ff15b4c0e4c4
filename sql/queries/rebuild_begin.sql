-- $1 collection, $2 alias, $3 version
insert into index_collections (collection, alias, embedding_version, state)
values ($1, $2, $3, 'building')
