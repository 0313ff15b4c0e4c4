-- Has the index compared with Postgres from its beginning on, as soon as a worker can. One
-- that is under way ends first, for it may be past what has to be looked at.
-- $1 version
update index_versions set verify_requested = true where embedding_version = $1
