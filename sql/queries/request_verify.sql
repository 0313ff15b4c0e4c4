-- Requests a verify of the whole index. A running verify ends first and another one follows it,
-- because the running one may have passed the ids to compare.
-- $1 version
update index_versions set verify_requested = true where embedding_version = $1
