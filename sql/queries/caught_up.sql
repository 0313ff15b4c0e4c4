-- Whether a version has no outbox rows, except dead letters and rows that an application scheduled
-- for later. The row of a leased note counts: it stays until the ack.
-- $1 version
select not exists (
    select from indexing_outbox
     where embedding_version = $1
       and status in ('PENDING', 'FAILED')
       and (status = 'FAILED' or available_at <= greatest(now(), created_at))) as "caught_up!"
