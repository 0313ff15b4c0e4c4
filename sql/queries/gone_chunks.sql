-- Those of these chunks that are no point's any more: cut away, or of a note that is
-- not live. A chunk that is there under a higher revision is its worker's to write.
-- $1 version, $2 chunk ids
select u.chunk_id as "chunk_id!"
  from unnest($2::uuid[]) as u (chunk_id)
 where not exists (
        select from memory_note_chunks c
          join memory_notes n on n.note_id = c.note_id
         where c.chunk_id = u.chunk_id
           and c.embedding_version is not distinct from $1 -- see chunk_page.sql
           and n.status = 'active' and (n.expires_at is null or n.expires_at > now()))
