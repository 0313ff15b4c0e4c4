-- "is not distinct from" instead of "=": of a version that is new the statistics know
-- nothing, and for a single row that is expected a join reads a table as often as there
-- are rows.
-- $1 version
with live as materialized (
    select n.note_id from memory_notes n
     where n.status = 'active' and (n.expires_at is null or n.expires_at > now())
)
select (select count(*) from live) as "live!",
       (select count(*) from live n
          join note_index_state s on s.note_id = n.note_id
         where s.embedding_version is not distinct from $1
           and s.indexed_at is not null) as "indexed!",
       (select count(*) from memory_note_chunks c
          join live n on n.note_id = c.note_id
         where c.embedding_version is not distinct from $1) as "chunks!"
