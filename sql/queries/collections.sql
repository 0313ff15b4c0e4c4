-- $1 version
select collection, alias, state
  from index_collections
 where embedding_version = $1 and state in ('building', 'active')
 order by created_at
