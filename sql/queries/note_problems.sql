-- Finds live notes whose chunks, hash or vectors do not follow from their text. Notes with an
-- outbox row that is not for later are skipped: a worker will index them, or they are dead-lettered.
-- $1 version, $2 dimension, $3 note ids above this, $4 notes at most, $5 the fraction of
-- the notes to check, 0 to 1, $6 bytes of text at most; at least one note
with sized as (
    select p.note_id, sum(p.bytes) over (order by p.note_id) - p.bytes as bytes_before
      from (select n.note_id, coalesce(octet_length(n.text::text), 0) as bytes
              from memory_notes n
             where n.note_id > $3 and elf_is_live(n) and ($5::double precision >= 1::float8 or random() < $5)
             order by n.note_id
             limit $4) p
),
texts as materialized (
    -- Converted once per note, because every chunk of the note is compared with these bytes.
    select s.note_id, pg_catalog.convert_to(coalesce(n.text::text, ''), 'UTF8') as bytes
      from sized s
     cross join lateral (select n.text from memory_notes n where n.note_id = s.note_id offset 0) n
     where s.bytes_before < $6
)
select p.note_id as "note_id!",
       case
           when (select true from elf_open_rows(p.note_id, $1) limit 1) then null
           when elf_is_leased(s) then null
           -- Its dead letter was purged: it is not indexed until it changes.
           when s.failures > 0 and s.failed_sha256 in (sha256(p.bytes), sha256(''::bytea)) then null
           when s.indexed_at is null then 'it was never indexed'
           when s.text_sha256 is distinct from sha256(p.bytes)
               then 'its text is not the one that was indexed'
           when k.chunks <> s.chunk_count
               then pg_catalog.format('it has %s chunks, not %s', k.chunks, s.chunk_count)
           when k.other_texts > 0
               then pg_catalog.format('%s of its chunks are not what its text says there', k.other_texts)
           when k.vectors < k.chunks
               then pg_catalog.format('%s of its chunks have no vector', k.chunks - k.vectors)
           when k.chunks > 0 and (m.vec is null or m.embedding_dim <> $2)
               then 'it has no pooled vector'
           -- A halfvec has 11 bits of each number, and rounded numbers stay rounded in a vector.
           when k.chunks > 0 and (m.vec::vector <-> k.mean) > 1e-3::float8 * (1::float8 + vector_norm(k.mean))
               then 'its pooled vector is not the mean of its chunks'
       end as problem
  from texts p
  left join lateral (
        select * from note_index_state s
         where s.note_id = p.note_id and s.embedding_version = $1
         limit 1) s on true
  left join lateral (
        select * from note_embeddings m
         where m.note_id = p.note_id and m.embedding_version = $1
         limit 1) m on true
 cross join lateral (
        select count(*) as chunks,
               count(*) filter (where e.embedding_dim = $2) as vectors,
               count(*) filter (where c.text_sha256 <> sha256(pg_catalog.convert_to(c.lead || c.text, 'UTF8'))
                                   or pg_catalog.convert_to(c.text, 'UTF8') <> substring(
                                      p.bytes from c.start_offset + 1
                                      for c.end_offset - c.start_offset)) as other_texts,
               avg(e.vec::vector) filter (where e.embedding_dim = $2) as mean
          from memory_note_chunks c
          left join lateral elf_vector(c.chunk_id, c.embedding_version) e on true
         where c.note_id = p.note_id and c.embedding_version is not distinct from $1) k
 order by p.note_id
