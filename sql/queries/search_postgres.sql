-- Searches chunks without the index: the newest of them, exactly by cosine, and by keyword.
-- $1 version, $2 the query's vector or null, $3 the query's words or null, $4 patterns of which
-- the text of a chunk matches at least one if it has a word of the query, $5 what the note must be like, by name,
-- $6 notes to scan at most, $7 chunks to scan at most, $8 candidates of each ranking
with notes as materialized (
    select n.note_id, n.updated_at
      from memory_notes n
     where elf_is_like(n, $5)
     order by n.updated_at desc nulls last
     limit $6
),
-- A letter of a script without spaces between words, as `Unspaced` in src/unicode.rs. Each is a word of its own.
unspaced as materialized (
    select '[\u0e00-\u109f\u1100-\u11ff\u1780-\u17ff\u2e80-\ua4cf\ua960-\ua97f\uaa60-\uaadf\uac00-\ud7ff\uf900-\ufaff\U0001b000-\U0001b2ff\U00020000-\U0003ffff]' as letter
),
-- Every word as an alternative, as BM25 has it.
words as materialized (
    select string_agg('''' || replace(replace(w.lexeme, '\', '\\'), '''', '''''') || '''', ' | ')
               ::tsquery as query
      from unnest(pg_catalog.to_tsvector('simple', regexp_replace($3, (select letter from unspaced), ' \& ', 'g'))) w
),
chunks as materialized (
    select c.chunk_id, c.text, e.vec
      from notes n
     cross join lateral (
            select c.chunk_id, c.text
              from memory_note_chunks c
             where c.note_id = n.note_id
               and c.embedding_version is not distinct from $1
            offset 0) c
      left join lateral (
            select e.vec::vector as vec
              from note_chunk_embeddings e
             where $2::vector is not null
               and e.chunk_id = c.chunk_id and e.embedding_version = $1
            offset 0) e on true
     limit $7
),
-- A pattern costs much less than to_tsvector, and most chunks match none.
scored as materialized (
    select c.chunk_id,
           1::float8 - (c.vec <=> $2::vector) as dense,
           case when c.text ilike any ($4::text[])
                -- Null if no word of the query is a lexeme: ½ is none.
                -- Without punctuation: the parser would take the 4417 of ERR-4417 for a negative number.
                then coalesce(ts_rank_cd(pg_catalog.to_tsvector('simple', regexp_replace(
                         regexp_replace(normalize(c.text, nfkc), '[!-/:-@[-`{-~]+', ' ', 'g'),
                         (select letter from unspaced), ' \& ', 'g')), (select query from words)), 0)
                else 0 end as words
      from chunks c
)
select s.chunk_id as "chunk_id!", s.dense::real, s.words as "words!"
  from scored s
 where s.chunk_id in (
       (select d.chunk_id from scored d where d.dense is not null
         order by d.dense desc, d.chunk_id limit $8)
       union all
       (select w.chunk_id from scored w where w.words > 0::real
         order by w.words desc, w.chunk_id limit $8))
