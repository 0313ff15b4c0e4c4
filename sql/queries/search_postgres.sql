-- Searches chunks without the index: the newest of them, exactly by cosine, and by keyword.
-- $1 version, $2 the query's vector or null, $3 the words of the query, $4 patterns of which
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
-- The words of the query. A word of a script without spaces is a phrase of its letters.
words as materialized (
    select w.place,
           pg_catalog.phraseto_tsquery('simple', regexp_replace(w.word, (select letter from unspaced), ' \& ', 'g'))
               as query
      from pg_catalog.unnest($3::text[]) with ordinality w(word, place)
),
chunks as materialized (
    select c.chunk_id, c.text, e.vec::vector as vec
      from notes n
     cross join lateral elf_chunks_of(n.note_id, $1) c
      left join lateral elf_vector(c.chunk_id, $1) e on $2::vector is not null
     limit $7
),
-- A pattern costs much less than to_tsvector, and most chunks match none.
texts as materialized (
    select c.chunk_id,
           -- Without punctuation: the parser would take the 4417 of ERR-4417 for a negative number.
           pg_catalog.to_tsvector('simple', regexp_replace(
               regexp_replace(normalize(c.text, nfkc), '[!-/:-@[-`{-~]+', ' ', 'g'),
               (select letter from unspaced), ' \& ', 'g')) as words
      from chunks c
     where c.text ilike any ($4::text[])
),
-- ts_rank_cd is 0.1 for each time.
found as materialized (
    select t.chunk_id, w.place, 10::float8 * ts_rank_cd(t.words, w.query)::float8 as times
      from texts t
      join words w on t.words @@ w.query
),
-- As BM25 has it: a word counts the more, the fewer of the chunks have it.
rarities as materialized (
    select f.place,
           ln(1::float8 + ((a.chunks - count(*))::float8 + 0.5::float8) / (count(*)::float8 + 0.5::float8)) as rarity
      from found f
     cross join (select count(*) as chunks from chunks) a
     group by f.place, a.chunks
),
by_words as materialized (
    select f.chunk_id, sum(r.rarity * f.times * 2.2::float8 / (f.times + 1.2::float8)) as words
      from found f
      join rarities r using (place)
     group by f.chunk_id
),
scored as materialized (
    select c.chunk_id,
           1::float8 - (c.vec <=> $2::vector) as dense,
           coalesce(w.words, 0::float8) as words
      from chunks c
      left join by_words w using (chunk_id)
)
select s.chunk_id as "chunk_id!", s.dense::real, s.words::real as "words!"
  from scored s
 where s.chunk_id in (
       (select d.chunk_id from scored d where d.dense is not null
         order by d.dense desc, d.chunk_id limit $8)
       union all
       (select w.chunk_id from scored w where w.words > 0::float8
         order by w.words desc, w.chunk_id limit $8))
