-- Expressions that several statements share. Postgres puts each in its place while it plans a statement, so a
-- call costs nothing (sql/README.md, Shared expressions).

-- A number of an application's column. Null, infinite and what a `real` cannot hold are 0. One for each type: with
-- `anyelement`, or a cast, a function of another role with the exact type would come first.
create function elf_number(v real) returns real language sql immutable as $$
    select case when abs(v) between 1e-37::real and 1e37::real then v else 0 end
$$;
create function elf_number(v double precision) returns real language sql immutable as $$
    select (case when abs(v) between 1e-37::float8 and 1e37::float8 then v else 0 end)::real
$$;
create function elf_number(v numeric) returns real language sql immutable as $$
    select (case when abs(v) between 1e-37 and 1e37 then v else 0 end)::real
$$;

-- A time of an application's column, within the years that the payload of a point can hold.
create function elf_time(v timestamptz) returns timestamptz language sql immutable as $$
    select case when v is not null
                then least(greatest(v, '0001-01-01 00:00+00'), '9999-12-31 00:00+00') end
$$;

-- A title of an application's column. The leads and results of a note hold no more of it.
create function elf_title(v text) returns text language sql immutable as $$
    select nullif(left(v, 1000), '')
$$;

create function elf_is_live(n memory_notes) returns boolean language sql stable as $$
    select n.status::text = 'active' and (n.expires_at is null or n.expires_at > now())
$$;

-- Whether a note is live and like the filter of a search. A field that the filter lacks allows every value.
create function elf_is_like(n memory_notes, filter jsonb) returns boolean language sql stable as $$
    select elf_is_live(n)
           and (filter->>'tenant_id' is null or n.tenant_id::text = filter->>'tenant_id')
           and (filter->>'project_id' is null or n.project_id::text = filter->>'project_id')
           and (filter->>'agent_id' is null or n.agent_id::text = filter->>'agent_id')
           and (filter->>'scope' is null or n.scope::text = filter->>'scope')
           and (filter->>'type' is null or n.type::text = filter->>'type')
           and (filter->>'key' is null or n.key::text = filter->>'key')
           and (filter->>'status' is null or n.status::text = filter->>'status')
           and (filter->>'updated_after' is null
                or n.updated_at >= (filter->>'updated_after')::timestamptz)
           and (filter->>'updated_before' is null
                or n.updated_at < (filter->>'updated_before')::timestamptz)
           and (filter->>'min_importance' is null
                or elf_number(n.importance) >= (filter->>'min_importance')::real)
$$;

-- Whether a key of the HTTP API reaches a note. A project or an agent that is null stands for all.
create function elf_is_reached(n memory_notes, tenant text, project text, agent text) returns boolean
language sql stable as $$
    select n.tenant_id::text = tenant
           and (project is null or n.project_id::text = project)
           and (agent is null or n.agent_id::text = agent)
$$;

-- A note as ELF reads it. The application may have made the table, so every column but the id may be null, of
-- another type or out of range, and such a row must not fail the statement for the other notes. A caller that
-- does not name `text` or `source_ref` does not read it, and `octet_length` of a large text does not read it either.
create function elf_note(uuid)
returns table (note_id uuid, text text, text_bytes int, status text, is_live boolean, expires_at timestamptz,
               tenant_id text, project_id text, agent_id text, scope text, kind text, key text, title text,
               importance real, confidence real, updated_at timestamptz, source_ref jsonb)
language sql stable as $$
    select n.note_id, n.text::text, octet_length(n.text::text), coalesce(n.status::text, ''), elf_is_live(n),
           elf_time(n.expires_at), coalesce(n.tenant_id::text, ''), coalesce(n.project_id::text, ''),
           coalesce(n.agent_id::text, ''), coalesce(n.scope::text, ''), coalesce(n.type::text, ''),
           n.key::text, elf_title(n.title::text), elf_number(n.importance), elf_number(n.confidence),
           elf_time(coalesce(n.updated_at, 'epoch')), n.source_ref
      from memory_notes n
     where n.note_id = $1 -- a column of the application may be named like a parameter
    offset 0
$$;

-- The cuts that a note's application gives, as text. Null without any, '' if they are longer than any good ones are.
create function elf_cuts(source_ref jsonb, text_bytes int, max_bytes int) returns text language sql immutable as $$
    select case when octet_length((source_ref -> 'cuts'::text)::text) > least(max_bytes::bigint, 12 * (text_bytes::bigint + 2))
                then '' else (source_ref -> 'cuts'::text)::text end
$$;

-- The source of a note that gets another text: cuts are of the text that they came with.
create function elf_without_cuts(source_ref jsonb) returns jsonb language sql immutable as $$
    select case when source_ref -> 'cuts'::text is null then source_ref else source_ref - 'cuts'::text end
$$;

-- Whether a worker holds a note. A lease that was taken later than now was taken before the clock of Postgres
-- went back, and is none.
create function elf_is_leased(s note_index_state) returns boolean language sql volatile as $$
    select s.lease_until > now() and (s.leased_at > clock_timestamp()) is not true
$$;

-- Whether the next claim takes an outbox row. A row for later asks for one more round then, whatever is done
-- before. A row that was written before the clock went back is not for later.
create function elf_is_for_now(o indexing_outbox) returns boolean language sql stable as $$
    select o.status <> 'PENDING' or o.available_at <= greatest(now(), o.created_at)
$$;

-- The first due outbox row after a place whose note no worker holds, is not among `seen`, and has lost fewer
-- claims than `lost`. Two range scans of an index, one for the rows of this version and one for those without a
-- version, read no rows of other versions. The second orders by the version too: it is always null there, but
-- Postgres does not know that and would sort. A scalar subquery looks up the state, because a join would read
-- all of note_index_state.
create function elf_next_due(version text, is_active boolean, after timestamptz, after_id uuid, seen uuid[], lost int)
returns table (note_id uuid, available_at timestamptz, outbox_id uuid) language sql stable as $$
    select u.note_id, u.available_at, u.outbox_id
      from ((select o.note_id, o.available_at, o.outbox_id
               from indexing_outbox o
              where o.embedding_version = version
                and o.status in ('PENDING', 'FAILED')
                and o.available_at <= now()
                and (o.available_at, o.outbox_id) > (after, after_id)
                and o.note_id <> all (seen)
                and not coalesce((select elf_is_leased(s) or s.claims_lost >= lost
                                    from note_index_state s
                                   where s.note_id = o.note_id and s.embedding_version = version), false)
              order by o.available_at, o.outbox_id
              limit 1)
            union all
            (select o.note_id, o.available_at, o.outbox_id
               from indexing_outbox o
              where o.embedding_version is null
                and is_active
                and o.status in ('PENDING', 'FAILED')
                and o.available_at <= now()
                and (o.available_at, o.outbox_id) > (after, after_id)
                and o.note_id <> all (seen)
                and not coalesce((select elf_is_leased(s) or s.claims_lost >= lost
                                    from note_index_state s
                                   where s.note_id = o.note_id and s.embedding_version = version), false)
              order by o.embedding_version, o.available_at, o.outbox_id
              limit 1)) u
     order by u.available_at, u.outbox_id
     limit 1
$$;
