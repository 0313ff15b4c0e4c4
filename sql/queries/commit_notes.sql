-- Writes chunks, vectors and states of the notes that are still leased under this token, and locks
-- what has to stay as it is until the transaction ends. One statement, so that a commit takes one
-- turn; a commit of many bytes executes it several times, each time with all notes and a part of
-- the rows.
--
-- One snapshot is enough: whatever was written to a note under an older token was committed before
-- the claim that drew this token. The collections are read under a lock that Postgres takes before
-- the snapshot.
--
-- $1 version, $2 dimension, $3 token,
-- notes: $4 ids, $5 whether live, $6 text hashes, $7 chunk counts, $8 hashes of the access labels,
-- $9 whether they have a pooled vector (in this or another execution),
-- pooled vectors: $10 places of their notes in $4, $11 vectors,
-- chunks: $12 ids, $13 places of their notes in $4, $14 indexes, $15 and $16 offsets, $17 texts,
-- $18 text hashes, $19 whether they await a vector,
-- vectors: $20 chunk ids, $21 places of their notes in $4, $22 vectors

-- No worker can claim the notes before the transaction ends.
-- Here and in the other statements about leases, `= any` of an array selects the rows, not a join
-- with `unnest`. After a vacuum of an empty table Postgres assumes for some time that it is still
-- empty, and a join would read all of it once for each note.
with leased as materialized (
    select s.note_id, s.revision is not null as was_indexed
      from note_index_state s
     where s.note_id = any ($4) and s.embedding_version = $1 and s.lease_token = $3
     order by s.note_id
       for update
),
-- The notes that no other transaction is deleting. The others are skipped, not waited for, so that
-- ELF cannot deadlock with an application's delete. They are locked after the leases.
present as materialized (
    select n.note_id
      from memory_notes n
     where n.note_id = any (array(
            select u.note_id
              from unnest($4::uuid[], $5::bool[]) as u (note_id, live)
             where u.live and u.note_id in (select l.note_id from leased l)))
     order by n.note_id
       for key share skip locked
),
notes as materialized (
    select u.*,
           u.note_id in (select l.note_id from leased l)
           and (not u.live or u.note_id in (select p.note_id from present p)) as written,
           u.note_id in (select l.note_id from leased l where l.was_indexed) as was_indexed
      from unnest($4::uuid[], $5::bool[], $6::bytea[], $7::int[], $8::bytea[], $9::bool[])
           with ordinality as u (note_id, live, text_sha256, chunk_count, access_sha256, pooled, place)
),
-- The chunks after the last one of each note: its old text had more.
surplus as (
    delete from memory_note_chunks
     where embedding_version is not distinct from $1 -- see chunk_page.sql
       and chunk_id = any (array(
            select c.chunk_id
              from notes n
             cross join lateral (
                    select c.chunk_id
                      from memory_note_chunks c
                     where c.note_id = n.note_id and c.chunk_index >= n.chunk_count
                       and c.embedding_version is not distinct from $1
                    offset 0) c
             where n.written and n.live and n.was_indexed))
),
chunks as (
    insert into memory_note_chunks as c
           (embedding_version, revision, chunk_id, note_id, chunk_index, start_offset, end_offset,
            text, text_sha256, awaits_vector)
    select $1, $3, u.chunk_id, ($4::uuid[])[u.place], u.chunk_index, u.start_offset, u.end_offset,
           u.text, u.text_sha256, u.awaits_vector
      from unnest($12::uuid[], $13::int[], $14::int[], $15::int[], $16::int[], $17::text[],
                  $18::bytea[], $19::bool[])
           as u (chunk_id, place, chunk_index, start_offset, end_offset, text, text_sha256, awaits_vector)
     where (select array_agg(n.written order by n.place) from notes n)[u.place]
    on conflict (chunk_id, embedding_version) do update
       set revision = excluded.revision,
           start_offset = excluded.start_offset,
           end_offset = excluded.end_offset,
           text = excluded.text,
           text_sha256 = excluded.text_sha256,
           awaits_vector = excluded.awaits_vector
),
-- The vectors of old texts of chunks that have no vector now.
old_vectors as (
    delete from note_chunk_embeddings
     where embedding_version is not distinct from $1 -- see chunk_page.sql
       and chunk_id = any (array(
            select u.chunk_id
              from unnest($12::uuid[], $13::int[], $19::bool[]) as u (chunk_id, place, awaits_vector)
             where u.awaits_vector
               and (select array_agg(n.written and n.was_indexed order by n.place) from notes n)[u.place]))
),
vectors as (
    insert into note_chunk_embeddings (embedding_version, embedding_dim, chunk_id, vec)
    select $1, $2, u.chunk_id, u.vec
      from unnest($20::uuid[], $21::int[], $22::vector[]) as u (chunk_id, place, vec)
     where (select array_agg(n.written order by n.place) from notes n)[u.place]
    on conflict (chunk_id, embedding_version) do update
       set vec = excluded.vec, embedding_dim = excluded.embedding_dim, created_at = now()
),
pooled as (
    insert into note_embeddings (embedding_version, embedding_dim, note_id, vec)
    select $1, $2, ($4::uuid[])[u.place], u.vec
      from unnest($10::int[], $11::vector[]) as u (place, vec)
     where (select array_agg(n.written and n.live order by n.place) from notes n)[u.place]
    on conflict (note_id, embedding_version) do update
       set vec = excluded.vec, embedding_dim = excluded.embedding_dim, updated_at = now()
),
old_pooled as (
    delete from note_embeddings
     where embedding_version = $1
       and note_id = any (array(
            select n.note_id from notes n where n.written and n.live and not n.pooled))
),
-- The rows are locked above, so every insert is a conflict. An update could be a sequential scan,
-- but a conflict always finds its row by the index of the key.
-- The points may have the old access labels until the vector engine has answered. So the hash is
-- set to null unless it is the same.
states as (
    insert into note_index_state as s
           (embedding_version, lease_token, revision, note_id, text_sha256, chunk_count, access_sha256)
    select $1, $3, $3, n.note_id, n.text_sha256, n.chunk_count, n.access_sha256
      from notes n
     where n.written
    on conflict (note_id, embedding_version) do update
       set revision = excluded.revision,
           text_sha256 = excluded.text_sha256,
           chunk_count = excluded.chunk_count,
           access_sha256 = case when s.access_sha256 = excluded.access_sha256
                                then s.access_sha256 end,
           failures = 0,
           failed_sha256 = null
     where s.lease_token = excluded.lease_token
),
-- See target_collections.sql.
collections as materialized (
    select collection
      from index_collections
     where embedding_version = $1 and state in ('building', 'active')
     order by collection
       for share
)
select array(select n.note_id from notes n where n.written) as "notes!",
       array(select c.collection from collections c) as "collections!"
