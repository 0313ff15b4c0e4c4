-- Locks the notes that are still leased under this token: no worker can claim them before the
-- transaction ends. Of the live ones it locks those that no other transaction is deleting, and skips
-- the others instead of waiting, so that ELF cannot deadlock with an application's delete. Returns
-- the notes to write, those of them that were committed before, those whose points equal their
-- chunks, and what Postgres has of those of the chunks that have a vector.
-- A note that an application deleted and inserted again after the snapshot is not in it, and is
-- skipped. So the hashes are those of the notes that are locked. So is one that has other access labels
-- than those that were loaded: an application may have deleted it and inserted it again for another tenant,
-- and the chunks are of the text that was loaded.
-- $1 version, $2 token, $3 note ids, $4 whether each is live, $5 chunk ids,
-- $6 tenants of the notes, $7 projects, $8 agents, $9 scopes
with leased as materialized (
    select s.note_id, s.revision is not null as was_indexed, s.revision, s.chunk_count,
           s.indexed_revision = s.revision as is_current
      from note_index_state s
     where s.note_id = any ($3) and s.embedding_version = $1 and s.lease_token = $2
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
                  from unnest($3::uuid[], $4::bool[], $6::text[], $7::text[], $8::text[], $9::text[])
                       as u (note_id, live, tenant_id, project_id, agent_id, scope)
                 where u.live)) is true
     order by n.note_id
       for key share skip locked
),
notes as materialized (
    select u.note_id
      from unnest($3::uuid[], $4::bool[]) as u (note_id, live)
     where (u.note_id in (select l.note_id from leased l)) is true
       and (not u.live or u.note_id in (select p.note_id from present p))
),
chunks as materialized (
    select c.chunk_id, c.text_sha256, c.start_offset, c.end_offset, c.parent_start_offset, c.parent_end_offset
      from pg_catalog.unnest($5::uuid[]) as u (chunk_id)
     cross join lateral elf_chunk(u.chunk_id, $1) c
     where not c.awaits_vector and (select true from elf_vector(c.chunk_id, $1))
)
select array(select n.note_id from notes n) as "notes!",
       array(select l.note_id from leased l where l.was_indexed) as "indexed!",
       array(select l.note_id from leased l where l.is_current) as "current!",
       array(select l.revision from leased l where l.is_current) as "revisions!",
       array(select l.chunk_count from leased l where l.is_current) as "chunk_counts!",
       array(select c.chunk_id from chunks c) as "chunks!",
       array(select c.text_sha256 from chunks c) as "hashes!",
       array(select c.start_offset from chunks c) as "starts!",
       array(select c.end_offset from chunks c) as "ends!",
       array(select c.parent_start_offset from chunks c) as "parent_starts!: Vec<Option<i32>>",
       array(select c.parent_end_offset from chunks c) as "parent_ends!: Vec<Option<i32>>"
