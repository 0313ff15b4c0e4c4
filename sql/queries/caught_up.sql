-- Whether nothing is left to do for a version but dead letters and what an application
-- wants done later. A row stays until its note is indexed, whoever has it leased.
-- $1 version
select not exists (
    select from indexing_outbox
     where embedding_version = $1
       and status in ('PENDING', 'FAILED')
       and (status = 'FAILED' or available_at <= now())) as "caught_up!"
