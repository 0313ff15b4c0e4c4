-- A row if the version is retired. Until the transaction ends it stays so: who serves it or builds it
-- again waits.
-- $1 version
select embedding_version from index_versions where embedding_version = $1 and state = 'retired' for share
