-- Whether a version has no outbox rows, except dead letters and rows that an application scheduled
-- for later. The row of a leased note counts: it stays until the ack.
-- $1 version
select not exists (
    select from indexing_outbox o
     where o.embedding_version = $1 and o.status in ('PENDING', 'FAILED') and elf_is_for_now(o)) as "caught_up!"
