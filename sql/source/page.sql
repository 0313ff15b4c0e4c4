-- Compares a page of {what}.
-- Outside of a trigger nothing holds the rows: one may change and commit between the moment when it is read and that when
-- its note is locked. The note is locked now: so what was changed is read again.
create function {function}(elf_after text, elf_count int, elf_write boolean, out elf_last text, out elf_rows bigint, {drift})
returns record
language plpgsql security definer {settings}
as {quote}
#variable_conflict use_variable
declare
    {declared}
begin
    {read}
    if elf_1 is null then
        return;
    end if;
    select p.elf_missing, p.elf_stale, p.elf_orphaned into elf_missing, elf_stale, elf_orphaned
      from {try}({arrays}, elf_write, false) p;
    if elf_write and elf_missing + elf_stale + elf_orphaned > 0 then
        perform {try}({arrays}, true, false);
    end if;
end {quote};
revoke all on function {function} from public;
