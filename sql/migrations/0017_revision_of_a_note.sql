-- The revision of a note's points is that of its state: an edit of its labels alone rewrites no
-- chunk. Before, each commit wrote its revision to each chunk of the note too, and searches,
-- rebuilds and verifies of an older program read it there: stop them before `elf migrate`.

-- The revision of the last ack. If it is `revision`, the index has confirmed all points of the note.
alter table note_index_state add column indexed_revision bigint;

update elf_schema set oldest_program = 17;
