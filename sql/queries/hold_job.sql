-- A row if the process still has the job. Until the transaction ends, no other process can take it: the
-- lock conflicts with that of take_job.sql, and not with the renewals of this process. Until when the
-- lease lasts does not matter: nobody took it, and nobody can now.
-- $1 holder
select holder from index_job where holder = $1 for key share
