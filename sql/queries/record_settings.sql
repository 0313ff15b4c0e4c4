-- Settings that a version was registered without, by an older ELF. $1 version, $2 settings
update index_versions set settings = settings || $2
 where embedding_version = $1 and settings <> settings || $2
