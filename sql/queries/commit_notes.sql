-- Writes chunks, vectors and states of notes that are still leased under this token. In a
-- transaction that has locked them before, it locks the same ones again.
-- One statement, so that it takes one turn. A commit of many bytes executes it several times in a
-- transaction: the last execution has the states, and what is to be deleted.
-- The statement has one snapshot. That is enough: a claim waits for the commits of the claims before it,
-- and this comes after the claim; and Postgres takes the lock on the table of collections before the
-- snapshot.
-- Without a transaction, it is executed with the settings of its connection. If they are not those of a
-- transaction of ELF, it writes nothing and returns no row.
-- $1 version, $2 dimension, $3 token,
-- chunks: $4 ids, $5 note ids, $6 indexes, $7 and $8 offsets, $9 texts, $10 text hashes,
-- $11 whether they await a vector,
-- vectors: $12 ids of chunks that are among $4, $13 vectors; pooled vectors: $14 note ids, $15 vectors,
-- states: $16 note ids, $17 text hashes, $18 chunk counts, $19 hashes of the access labels,
-- to delete: $20 and $21 notes and their chunk counts, for the chunks after the last one; $22 chunks
-- whose vector is of an old text; $23 notes without a pooled vector,
-- $24 all notes, $25 whether each is live, $26 their tenants, $27 projects, $28 agents, $29 scopes,
-- $30 what is embedded before each of the texts $9, $31 and $32 offsets of their parents
with settings as materialized (
    select current_setting('transaction_isolation') = 'read committed'
       and current_setting('plan_cache_mode') = 'force_generic_plan'
       and current_setting('enable_seqscan') = 'off' as are_set
),
leased as materialized (
    select s.note_id, s.revision is not null as was_indexed
      from note_index_state s
     where s.note_id = any ($24) and s.embedding_version = $1 and s.lease_token = $3
       and (select are_set from settings)
     order by s.note_id
       for update
),
present as materialized (
    select n.note_id
      from memory_notes n
     where n.note_id = any (array(select l.note_id from leased l))
       and ((n.note_id, coalesce(n.tenant_id::text, ''), coalesce(n.project_id::text, ''),
             coalesce(n.agent_id::text, ''), coalesce(n.scope::text, ''))
            in (select u.note_id, u.tenant_id, u.project_id, u.agent_id, u.scope
                  from unnest($24::uuid[], $25::bool[], $26::text[], $27::text[], $28::text[], $29::text[])
                       as u (note_id, live, tenant_id, project_id, agent_id, scope)
                 where u.live)) is true
     order by n.note_id
       for key share skip locked
),
notes as materialized (
    select u.note_id
      from unnest($24::uuid[], $25::bool[]) as u (note_id, live)
     where (u.note_id in (select l.note_id from leased l)) is true
       and (not u.live or u.note_id in (select p.note_id from present p))
),
chunks as (
    insert into memory_note_chunks as c
           (embedding_version, revision, chunk_id, note_id, chunk_index, start_offset, end_offset,
            text, text_sha256, awaits_vector, lead, parent_start_offset, parent_end_offset)
    select $1, $3, u.*
      from unnest($4::uuid[], $5::uuid[], $6::int[], $7::int[], $8::int[], $9::text[], $10::bytea[],
                  $11::bool[], $30::text[], $31::int[], $32::int[])
           as u (chunk_id, note_id, chunk_index, start_offset, end_offset, text, text_sha256,
                 awaits_vector, lead, parent_start_offset, parent_end_offset)
     where (u.note_id in (select n.note_id from notes n)) is true
    on conflict (chunk_id, embedding_version) do update
       set revision = excluded.revision,
           start_offset = excluded.start_offset,
           end_offset = excluded.end_offset,
           parent_start_offset = excluded.parent_start_offset,
           parent_end_offset = excluded.parent_end_offset,
           text = excluded.text,
           lead = excluded.lead,
           text_sha256 = excluded.text_sha256,
           awaits_vector = excluded.awaits_vector
    returning c.chunk_id
),
vectors as (
    insert into note_chunk_embeddings (embedding_version, embedding_dim, chunk_id, vec)
    select $1, $2, u.chunk_id, u.vec
      from unnest($12::uuid[], $13::vector[]) as u (chunk_id, vec)
     where (u.chunk_id in (select c.chunk_id from chunks c)) is true
    on conflict (chunk_id, embedding_version) do update
       set vec = excluded.vec, embedding_dim = excluded.embedding_dim, created_at = now()
),
pooled as (
    insert into note_embeddings (embedding_version, embedding_dim, note_id, vec)
    select $1, $2, u.note_id, u.vec
      from unnest($14::uuid[], $15::vector[]) as u (note_id, vec)
     where (u.note_id in (select n.note_id from notes n)) is true
    on conflict (note_id, embedding_version) do update
       set vec = excluded.vec, embedding_dim = excluded.embedding_dim, updated_at = now()
),
-- The rows are locked, so every insert is a conflict. An update could be a sequential scan, but a
-- conflict always finds its row by the index of the key.
-- The points may have the old access labels until the vector engine has answered. So the hash is
-- set to null unless it is the same. They may be of the old revision too, so none is confirmed: 0.
states as (
    insert into note_index_state as s
           (embedding_version, lease_token, revision, indexed_revision, note_id, text_sha256,
            chunk_count, access_sha256)
    select $1, $3, $3, 0, u.*
      from unnest($16::uuid[], $17::bytea[], $18::int[], $19::bytea[])
           as u (note_id, text_sha256, chunk_count, access_sha256)
     where (u.note_id in (select n.note_id from notes n)) is true
    on conflict (note_id, embedding_version) do update
       set revision = excluded.revision,
           indexed_revision = excluded.indexed_revision,
           text_sha256 = excluded.text_sha256,
           chunk_count = excluded.chunk_count,
           access_sha256 = case when s.access_sha256 = excluded.access_sha256
                                then s.access_sha256 end,
           failures = 0,
           failed_sha256 = null
     where s.lease_token = excluded.lease_token
),
surplus as (
    delete from memory_note_chunks
     where embedding_version is not distinct from $1
       and chunk_id = any (array(
            select c.chunk_id
              from unnest($20::uuid[], $21::int[]) as u (note_id, chunk_count)
             cross join lateral (
                    select c.chunk_id
                      from memory_note_chunks c
                     where c.note_id = u.note_id and c.chunk_index >= u.chunk_count
                       and c.embedding_version is not distinct from $1
                    offset 0) c
             where (u.note_id in (select n.note_id from notes n)) is true
               and (u.note_id in (select l.note_id from leased l where l.was_indexed)) is true))
),
old_vectors as (
    delete from note_chunk_embeddings
     where embedding_version is not distinct from $1
       and chunk_id = any (array(select pg_catalog.unnest($22::uuid[])))
),
old_pooled as (
    delete from note_embeddings
     where embedding_version = $1
       and note_id = any (array(
            select u.note_id
              from pg_catalog.unnest($23::uuid[]) as u (note_id)
             where (u.note_id in (select n.note_id from notes n)) is true))
),
-- With the share lock, a rebuild that registers a collection waits for this statement, or this statement sees the
-- collection.
targets as materialized (
    select collection, state = 'building' as is_building
      from index_collections
     where embedding_version = $1 and state in ('building', 'active')
     order by collection
       for share
)
select array(select n.note_id from notes n) as "notes!",
       array(select l.note_id from leased l where l.was_indexed) as "indexed!",
       array(select t.collection from targets t) as "collections!",
       array(select t.is_building from targets t) as "building!"
  from settings
 where are_set
