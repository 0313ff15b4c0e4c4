-- Skips a locked row: another transaction is acking or retrying it.
-- $1 outbox or note ids, null for all
delete from indexing_outbox
 where outbox_id = any (array(
        select o.outbox_id
          from indexing_outbox o
         where o.status = 'DEAD'
           and ($1::uuid[] is null or o.outbox_id = any ($1) or o.note_id = any ($1))
           for update skip locked))
