select collection, alias, embedding_version, state
  from index_collections
 order by created_at, collection
