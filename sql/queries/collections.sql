-- The collections that workers write for a version, the active one first.
-- $1 version
select collection as name, alias, embedding_version as version, state as "state: Lifecycle"
  from index_collections
 where embedding_version = $1 and state in ('building', 'active')
 order by state, created_at, collection
