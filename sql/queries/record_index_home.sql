-- $1 place, $2 id of the folder, $3 the database that the index belongs to
update elf_schema set index_place = $1, index_id = $2, index_owner = $3
