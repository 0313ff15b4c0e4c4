-- $1 version, $2 holder
delete from index_upkeep where embedding_version = $1 and holder = $2
