-- $1 version, $2 rows at most
delete from indexing_outbox
 where outbox_id = any (array(
        select outbox_id
          from indexing_outbox
         where embedding_version = $1 and status in ('PENDING', 'FAILED')
         order by available_at, outbox_id
         limit $2))
