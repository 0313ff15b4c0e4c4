-- Of all workers of a version one sweeps, counts and cleans up: whoever has this lease. It
-- is a row of note_index_state of no note and no version.
-- $1 version, $2 holder, $3 lease seconds
insert into note_index_state as s (note_id, embedding_version, lease_token, lease_until, holder)
values ('00000000-0000-0000-0000-000000000000', 'upkeep of ' || $1, 0,
        now() + make_interval(secs => $3), $2)
on conflict (note_id, embedding_version) do update
   set lease_until = excluded.lease_until, holder = excluded.holder
 where s.holder = excluded.holder or s.lease_until <= now()
