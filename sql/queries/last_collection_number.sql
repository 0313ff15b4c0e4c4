-- The highest number that a collection of this database ever had.
select greatest(case when s.is_called then s.last_value else 0 end,
                (select max(substring(c.collection from '__([0-9]{1,9})$')::bigint)
                   from index_collections c)) as "last!"
  from elf_collection_number s
