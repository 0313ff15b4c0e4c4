-- The function of the triggers. It finds the keys of what has changed. Nearly always each of them is a new note, or one
-- that differs: then one statement does it, which the triggers of memory_notes see once. What it has not done, `{put}`
-- does: rows that are or were left out, notes that were there before, or that are equal. A row that is new was not left
-- out: its deletion took it off the list.
create function {function}() returns trigger
language plpgsql security definer {settings}
as {quote}
declare
    {declared}
    elf_after text;
    elf_done  bigint := 0;
begin
    begin
        if tg_op = 'TRUNCATE' then
            -- All notes, and what is left out: of a table that is not partitioned, all rows are gone.
            loop
                select p.elf_last into elf_after from {of_notes}(elf_after, 10000, true) p;
                exit when elf_after is null;
            end loop;
            return null;
        elsif tg_level = 'STATEMENT' and tg_op = 'INSERT' then
            select {of_all} into {arrays} from new_rows r;
        elsif tg_level = 'STATEMENT' then
            select {of_all} into {arrays} from old_rows r;
        elsif tg_op = 'INSERT' then
            {of_new}
        elsif tg_op = 'DELETE' then
            {of_old}
        else
            {of_both}
            if {is_same_key} then
                {of_new}
            end if;
        end if;
        if elf_1 is null then
            return null;
        elsif tg_op = 'INSERT' then
            insert into {notes_table} as n (note_id, source, source_id, {list})
            select r.note_id, {name}, r.source_id, {inserted} from {rows}({arrays}) r
             where r.reason is null
            on conflict (note_id) do nothing;
            get diagnostics elf_done = row_count;
        elsif tg_op = 'UPDATE' then
            update {notes_table} n set {updated} from {rows}({arrays}) r
             where n.note_id = r.note_id and r.reason is null and ({of_note}) is distinct from ({as_row})
               and not exists (select from {left_out} l where l.source = {name} and l.note_id = r.note_id);
            get diagnostics elf_done = row_count;
        end if;
        if elf_done < cardinality(elf_1) then
            perform {put}({arrays}, true, true);
        end if;
    exception when others or assert_failure then
        if {is_no_fault_of_rows} then
            raise;
        end if;
        if {has_keys} then
            perform {try}({arrays}, true, true);
        else
            insert into {left_out} as l (source, note_id, source_id, reason)
            values ({name}, '00000000-0000-0000-0000-000000000000', '', sqlerrm)
            -- An update would hold the row: all that write the table would wait for each other.
            on conflict (source, note_id) do nothing;
        end if;
    end;
    return null;
end {quote};
revoke all on function {function} from public;
