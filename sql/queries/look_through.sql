-- The next notes of a tenant, live or not, in order of their ids, and whether each is as a filter says. The order
-- goes on with notes of the next tenant, so that no plan reads more than $4 notes.
-- $1 what they must be like, by name, $2 the tenant once more, for the index, $3 ids above this, $4 notes to look at,
-- $5 whether a note that follows a row can be as wanted
select l.note_id as "note_id!", l.is_wanted as "is_wanted!"
  from (select n.tenant_id::text as tenant_id, n.note_id, elf_is_of(n, $1) is true
               and ($5 or not exists (select from elf_sources s where s.source = n.source::text)) as is_wanted
          from memory_notes n
         where (n.tenant_id::text, n.note_id) > ($2, $3)
         order by n.tenant_id::text, n.note_id
         limit $4) l
 where l.tenant_id = $2
