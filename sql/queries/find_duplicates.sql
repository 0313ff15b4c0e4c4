-- The live notes whose pooled vector is nearest to that of a note that a key reaches.
-- The notes first, and then a look-up for each: a scan of the vectors would read those of every
-- tenant.
-- $1 note id, $2 version, $3 tenant, $4 project or null for all, $5 agent or null for all,
-- $6 least cosine, $7 notes at most, $8 what the others must be like, by name
with asked as materialized (
    select e.vec
      from memory_notes n
      join note_embeddings e on e.note_id = n.note_id and e.embedding_version = $2
     where n.note_id = $1
       and elf_is_reached(n, $3, $4, $5)
),
compared as materialized (
    select n.note_id, n.key::text as key, e.vec <=> (select vec from asked) as distance
      from memory_notes n
     cross join lateral (
            select e.vec
              from note_embeddings e
             where e.note_id = n.note_id and e.embedding_version = $2
            offset 0) e
     where n.note_id <> $1
       and elf_is_like(n, $8)
       and exists (select from asked)
)
select c.note_id as "note_id!", c.key as "key?", (1::float8 - c.distance)::real as "similarity!"
  from compared c
 where 1::float8 - c.distance >= $6
 order by c.distance, c.note_id
 limit $7
