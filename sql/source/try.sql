-- The same, and leaves out the rows that fail: it halves the keys until each is alone.
create function {try}({keys}, elf_write boolean, elf_lock boolean, {drift}) returns record
language plpgsql as {quote}
declare
    elf_constraint text;
    elf_detail     text;
begin
    select p.elf_missing, p.elf_stale, p.elf_orphaned into elf_missing, elf_stale, elf_orphaned
      from {put}({arrays}, elf_write, elf_lock) p;
exception when others or assert_failure then
    get stacked diagnostics elf_constraint = constraint_name, elf_detail = pg_exception_detail;
    if {is_no_fault_of_rows} then
        raise;
    end if;
    if cardinality(elf_1) > 1 and not {is_misfit} then
        select a.elf_missing + b.elf_missing, a.elf_stale + b.elf_stale, a.elf_orphaned + b.elf_orphaned
          into elf_missing, elf_stale, elf_orphaned
          from {try}({first_half}, elf_write, elf_lock) a
         cross join {try}({second_half}, elf_write, elf_lock) b;
        return;
    end if;
    insert into {left_out} as l (source, note_id, source_id, reason)
    select distinct {name}, {note_id}, left(i.source_id, 2000),
           case elf_constraint when 'memory_notes_key_idx' then 'another note has its key: ' || elf_detail else sqlerrm end
      from (select {id} as source_id from {unnested}) i
     where elf_write
    on conflict (source, note_id) do update set reason = excluded.reason;
    elf_missing := 0;
    elf_stale := 0;
    elf_orphaned := 0;
    -- The notes of a source that no longer fits its table stay as they are until it does.
    if not {is_misfit} then
        select count(*) into elf_orphaned from {notes_table} n
         where n.note_id = any (array(select {note_id} from (select {id} as source_id from {unnested}) i));
        delete from {notes_table} n
         where elf_write and n.note_id = any (array(select {note_id} from (select {id} as source_id from {unnested}) i));
    end if;
end {quote};
revoke all on function {try} from public;
