-- The collections that must get the points of this transaction. With the share lock, a rebuild
-- that registers a collection waits for this transaction, or this transaction sees the collection.
-- $1 version
select collection, state = 'building' as "is_building!"
  from index_collections
 where embedding_version = $1 and state in ('building', 'active')
 order by collection
   for share
