-- Compares the notes of these keys with their rows, and makes them equal with `elf_write`. With `elf_lock` the caller holds
-- the rows, as a trigger does: then no other transaction changes the notes meanwhile. A note that is equal now may have been
-- changed, or deleted, by a transaction that is open.
create function {put}({keys}, elf_write boolean, elf_lock boolean, {drift}) returns record
language plpgsql as {quote}
#variable_conflict use_column
begin
    if elf_lock then
        perform from {notes_table} n
          where n.note_id = any (array(select {note_id} from (select distinct {id} as source_id from {unnested}) i))
          order by n.note_id for no key update;
    end if;
    with elf_ids as materialized (
        select distinct {id} as source_id from {unnested}
    ),
    elf_read as materialized (
        select r.* from {rows}({arrays}) r
    ),
    -- Where nothing is written, no index says that another note has a key. It keeps the key unless its row is among these
    -- and has another one.
    elf_wanted as materialized (
        select r.note_id, r.source_id, {read},
               case when not elf_write and r.reason is null and r.key <> ''
                         and exists (select from {notes_table} o
                                      where o.tenant_id = r.tenant_id and o.project_id = r.project_id and o.agent_id = r.agent_id
                                        and o.scope = r.scope and o.key = r.key and o.key <> '' and o.note_id <> r.note_id
                                        and (o.note_id <> all (array(select {note_id} from elf_ids i))
                                             or exists (select from elf_read w where w.note_id = o.note_id and w.key = o.key)))
                    then 'another note has its key'
                    else r.reason
               end as reason
          from elf_read r
    ),
    elf_differing as materialized (
        select w.*, o.note_id is not null as elf_is_there
          from elf_wanted w
          left join {notes_table} o on o.note_id = w.note_id
         where w.reason is null
           and (o.note_id is null or ({of_note}) is distinct from ({as_wanted}))
    ),
    elf_gone as materialized (
        select n.note_id
          from {notes_table} n
         where n.note_id = any (array(select {note_id}
                                        from (select e.source_id from elf_ids e
                                              except select w.source_id from elf_wanted w where w.reason is null) i))
    ),
    elf_put as (
        insert into {notes_table} as n (note_id, source, source_id, {list})
        select r.note_id, {name}, r.source_id, {inserted}
          from elf_differing r
         where elf_write
         -- Two statements that write the same notes take them in the same order.
         order by r.note_id
        on conflict (note_id) do update
           set source = excluded.source, source_id = excluded.source_id, {set}
    ),
    elf_deleted as (
        delete from {notes_table} n
         where elf_write and n.note_id = any (array(select g.note_id from elf_gone g))
    ),
    elf_new_reasons as (
        insert into {left_out} as l (source, note_id, source_id, reason)
        select {name}, w.note_id, w.source_id, w.reason from elf_wanted w where elf_write and w.reason is not null
        on conflict (source, note_id) do update set reason = excluded.reason
        where l.reason is distinct from excluded.reason
    ),
    elf_old_reasons as (
        delete from {left_out} l
         where elf_write and l.source = {name} and exists (select from {left_out} e where e.source = {name})
           and l.note_id = any (array(select {note_id}
                                        from (select e.source_id from elf_ids e
                                              except select w.source_id from elf_wanted w where w.reason is not null) i))
    )
    select count(*) filter (where not d.elf_is_there), count(*) filter (where d.elf_is_there),
           (select count(*) from elf_gone)
      into elf_missing, elf_stale, elf_orphaned
      from elf_differing d;
end {quote};
revoke all on function {put} from public;
