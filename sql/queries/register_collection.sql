-- The sequence keeps the highest number that a collection ever had, also after its row is deleted,
-- so that no collection gets the name of an earlier one.
-- $1 collection, $2 alias, $3 version, $4 state
with registered as (
    insert into index_collections (collection, alias, embedding_version, state)
    values ($1, $2, $3, $4)
    returning substring(collection from '__([0-9]{1,9})$')::bigint as number
)
select pg_catalog.setval('elf_collection_number', greatest(r.number, s.last_value)) as "last"
  from registered r
 cross join elf_collection_number s
 where r.number > 0
