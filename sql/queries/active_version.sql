select embedding_version, embedding_dim, settings
  from index_versions
 where state = 'active'
