-- $1 seconds that done rows are kept
delete from indexing_outbox
 where status = 'DONE' and updated_at <= now() - make_interval(secs => $1)
