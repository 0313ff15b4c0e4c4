-- Chunks that are found by keyword alone, because the provider cannot make their vectors yet
-- (`worker.bm25_first`). Their notes are due as before. A program that does not know the column would
-- give a chunk its vector and leave it set: stop workers of the older version before `elf migrate`.

alter table memory_note_chunks add column awaits_vector boolean not null default false;

update elf_schema set oldest_program = 13;
