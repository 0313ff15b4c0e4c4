-- The collections that must have what this transaction commits. The share lock
-- makes a rebuild that registers a collection wait for us, or us see it.
-- $1 version
select collection
  from index_collections
 where embedding_version = $1 and state in ('building', 'active')
 order by collection
   for share
