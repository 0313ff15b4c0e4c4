-- Reads the next states of a version, and enqueues those whose note is deleted and has no outbox
-- row but for later. Such a state stays when its worker died between the ack and the deletion of the state. Another
-- round deletes it. A worker that acked the note within a minute may live and be about to delete the state.
-- $1 version, $2 note ids above this, $3 states at most
with page as materialized (
    select s.note_id,
           elf_is_leased(s)
           or s.indexed_at between now() - interval '1 minute' and now() as is_held
      from note_index_state s
     where s.embedding_version = $1 and s.note_id > $2
     order by s.note_id
     limit $3
),
gone as (
    insert into indexing_outbox (note_id, op, embedding_version)
    select p.note_id, 'DELETE', $1
      from page p
     where p.is_held is not true
       and (select n.note_id from memory_notes n where n.note_id = p.note_id) is null
       and (select true from elf_open_rows(p.note_id, $1) limit 1) is not true
    returning note_id
)
select p.note_id as "last!", (select count(*) from gone) as "gone!"
  from page p
 order by p.note_id desc
 limit 1
