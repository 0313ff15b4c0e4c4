-- Makes the notes of these rows equal to them again: something has changed elsewhere that their expressions read. It does
-- no more than a sync does, so everybody may call it. Two that touch a row at once wait for each other at its note. A
-- note that was not there is written again once this transaction holds it: the other may have committed meanwhile.
create function {touch}(elf_ids text[]) returns void
language plpgsql security definer {settings}
as {quote}
declare
    {declared}
    elf_new bigint;
begin
    select {of_ids} into {arrays} from unnest(elf_ids) as k (source_id);
    if elf_1 is not null then
        select p.elf_missing into elf_new from {try}({arrays}, true, true) p;
        if elf_new > 0 then
            perform {try}({arrays}, true, true);
        end if;
    end if;
end {quote};
revoke all on function {touch} from public;
