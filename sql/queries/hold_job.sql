-- A row if the process still has the job. Until the transaction ends, no other process can take it: the
-- lock conflicts with the one that takes the job, and not with the renewals of this process. Until when the
-- lease lasts does not matter: no process took it, and none can now.
-- $1 holder
select holder from index_job where holder = $1 for key share
