-- The text around these chunks as the note says it now: the parent, or from the start of the chunk before to the
-- end of the chunk after. Whitespace and invisible characters are in no chunk: a chunk behind more
-- than 1,000 bytes of them is no neighbour. Null for a note with more than $4 bytes. A chunk whose note is not
-- live or is not like that by now has no row.
-- $1 version, $2 chunk ids, $3 what the note must be like, by name, $4 bytes of text at most
select c.chunk_id as "chunk_id!", a.start_offset as "start_offset!", n.bytes
  from pg_catalog.unnest($2::uuid[]) as u (chunk_id)
 cross join lateral elf_chunk(u.chunk_id, $1) c
 cross join lateral (
        select coalesce(c.parent_start_offset, min(a.start_offset)) as start_offset,
               coalesce(c.parent_end_offset, max(a.end_offset)) as end_offset
          from memory_note_chunks a
         where a.note_id = c.note_id
           and a.chunk_index between c.chunk_index - 1 and c.chunk_index + 1
           and a.start_offset <= c.end_offset + 1000
           and a.end_offset >= c.start_offset - 1000
           and a.embedding_version is not distinct from $1
        offset 0) a
 cross join lateral (
        select case when octet_length(n.text::text) <= $4
                    then substring(pg_catalog.convert_to(n.text::text, 'UTF8')
                              from a.start_offset + 1 for a.end_offset - a.start_offset)
               end as bytes
          from memory_notes n
         where n.note_id = c.note_id
           and elf_is_like(n, $3)
        offset 0) n
