-- The live notes whose pooled vector is nearest to that of a note, all within what a key reaches.
-- The notes first, and then a look-up for each: a scan of the vectors would read those of every
-- tenant.
-- $1 note id, $2 version, $3 tenant, $4 project or null for all, $5 agent or null for all,
-- $6 least cosine, $7 notes at most
with asked as materialized (
    select e.vec
      from memory_notes n
      join note_embeddings e on e.note_id = n.note_id and e.embedding_version = $2
     where n.note_id = $1
       and elf_is_reached(n, $3, $4, $5)
),
notes as materialized (
    select n.note_id, n.key::text as key
      from memory_notes n
     where n.note_id <> $1
       and elf_is_reached(n, $3, $4, $5)
       and elf_is_live(n)
       and exists (select from asked)
),
compared as materialized (
    select n.note_id, n.key, e.vec <=> (select vec from asked) as distance
      from notes n
     cross join lateral (
            select e.vec
              from note_embeddings e
             where e.note_id = n.note_id and e.embedding_version = $2
            offset 0) e
)
select c.note_id as "note_id!", c.key as "key?", (1::float8 - c.distance)::real as "similarity!"
  from compared c
 where 1::float8 - c.distance >= $6
 order by c.distance, c.note_id
 limit $7
