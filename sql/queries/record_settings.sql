-- Adds settings that the row of a version lacks, because an older ELF registered it.
-- $1 version, $2 settings
update index_versions set settings = settings || $2
 where embedding_version = $1 and settings <> settings || $2
