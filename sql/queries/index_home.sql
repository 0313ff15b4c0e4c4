select index_place, index_id, index_owner from elf_schema
