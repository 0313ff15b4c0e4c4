-- See ack.sql for the order of the locks.
-- $1 version, $2 token, $3 note ids, $4 lease seconds
with held as materialized (
    select s.note_id
      from note_index_state s
     where s.note_id = any ($3) and s.embedding_version = $1 and s.lease_token = $2
       and s.lease_until is not null
     order by s.note_id
       for update
)
update note_index_state s
   set leased_at = now(), lease_until = now() + make_interval(secs => $4)
 where (select count(*) from held) > 0
   and s.note_id = any ($3) and s.embedding_version = $1 and s.lease_token = $2
   and s.lease_until is not null
