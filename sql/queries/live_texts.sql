-- A page of live notes and their texts, in order of their ids.
-- $1 ids above this, $2 notes at most, $3 bytes of text at most; at least one note, $4 bytes of cuts at most
with sized as (
    select p.note_id, sum(p.bytes) over (order by p.note_id) - p.bytes as bytes_before
      from (select n.note_id, coalesce(octet_length(n.text::text), 0) as bytes
              from memory_notes n
             where n.note_id > $1 and elf_is_live(n)
             order by n.note_id
             limit $2) p
)
select n.note_id as "note_id!", coalesce(n.text, '') as "text!", n.kind as "kind!", n.title,
       elf_cuts(n.source_ref, n.text_bytes, $4) as cuts,
       n.updated_at as "updated_at!"
  from sized s
 cross join lateral elf_note(s.note_id) n
 where s.bytes_before < $3
 order by n.note_id
