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

-- An object of an application's column as answers show it: without cuts, which are for the worker, and empty if it is
-- larger than what the API takes can become.
create function elf_shown(v jsonb) returns jsonb language sql immutable as $$
    select case when v = '{}' or jsonb_typeof(v) is distinct from 'object' then '{}'
                when octet_length((v - 'cuts'::text)::text) <= 262144 then v - 'cuts'::text else '{}' end
$$;

-- A title of an application's column. The leads and results of a note hold no more of it.
create function elf_title(v text) returns text language sql immutable as $$
    select nullif(left(v, 1000), '')
$$;

create function elf_is_live(n memory_notes) returns boolean language sql stable as $$
    select n.status::text = 'active' and (n.expires_at is null or n.expires_at > now())
$$;

-- A time of a JSON text, in one form that sorts as the times do; null if it is none. Without an offset it is UTC.
create function elf_datetime(v text) returns text language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
declare
    at timestamptz;
begin
    if v !~ '^\d{4}-\d\d-\d\d([Tt ]\d\d:\d\d(:\d\d(\.\d{1,9})?)?([Zz]|[+-]\d\d(:?\d\d)?)?)?$' then
        return null;
    end if;
    at := case when v ~ '^.{10}$' then v || ' 00:00Z' when v ~ '([Zz]|[+-]\d\d(:?\d\d)?)$' then v else v || 'Z' end;
    return case when at between '0001-01-01 00:00+00' and '9999-12-31 00:00+00'
                then to_char(at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') end;
exception when data_exception then
    return null;
end $$;

-- The value of a declared field, in the one form in which payloads have it and filters compare it; null if it has
-- none of its type.
create function elf_metadata_value(v jsonb, type text) returns jsonb language sql immutable as $$
    select case type || ' ' || jsonb_typeof(v)
           when 'keyword string' then case when octet_length(v #>> '{}') between 1 and 1000 then v end
           when 'keywords string' then case when octet_length(v #>> '{}') between 1 and 1000 then pg_catalog.jsonb_build_array(v) end
           when 'keywords array' then
               (select pg_catalog.jsonb_agg(e.v order by e.place)
                  from jsonb_array_elements(v) with ordinality as e (v, place)
                 where e.place <= 100 and jsonb_typeof(e.v) = 'string' and octet_length(e.v #>> '{}') between 1 and 1000)
           -- The index compares integers as f64, which holds each up to 2^53.
           when 'integer number' then
               case when abs(v::numeric) <= 9007199254740992::numeric and v::numeric = trunc(v::numeric)
                    then pg_catalog.to_jsonb(v::numeric::bigint) end
           when 'number number' then
               case when abs(v::numeric) between 1e-300 and 1e300 then pg_catalog.to_jsonb(v::numeric::float8)
                    when abs(v::numeric) < 1e-300 then '0' end
           when 'boolean boolean' then v
           when 'datetime string' then pg_catalog.to_jsonb(elf_datetime(v #>> '{}'))
           end
$$;

-- The declared fields of a note that have a value; null if none has, or if they have more than 16 KiB together: the
-- payload of each of its points has them. Its plan is made once: ELF's sessions would make it for each row.
create function elf_metadata(metadata jsonb) returns jsonb language sql stable set plan_cache_mode = force_generic_plan as $$
    select case when metadata <> '{}' and jsonb_typeof(metadata) = 'object' then
               (select case when octet_length(pg_catalog.jsonb_object_agg(f.name, f.value)::text) <= 16384
                            then pg_catalog.jsonb_object_agg(f.name, f.value) end
                  from (select f.name, elf_metadata_value(metadata -> f.name, f.type) as value
                          from elf_metadata_fields f
                        offset 0) f
                 where f.value is not null) end
$$;

-- Whether the fields of a note meet conditions: {"lang": {"type": "keyword", "any": ["de"]}}, with `any`, `gte`, `gt`,
-- `lte` and `lt` in the form of elf_metadata_value, or `exists`. A field without a value meets `"exists": false` alone.
create function elf_meets(metadata jsonb, conditions jsonb) returns boolean
language sql immutable set plan_cache_mode = force_generic_plan as $$
    select not exists (
        select
          from jsonb_each(conditions) as c (name, wanted)
         cross join lateral (select elf_metadata_value(metadata -> c.name, c.wanted ->> 'type') as value offset 0) m
         where not coalesce(
                   (m.value is not null) = coalesce((c.wanted ->> 'exists')::boolean, true)
                   and (c.wanted -> 'any' is null
                        or exists (select
                                     from jsonb_array_elements(case jsonb_typeof(m.value) when 'array' then m.value
                                                                    else pg_catalog.jsonb_build_array(m.value) end) as e (v)
                                    where c.wanted -> 'any' @> e.v))
                   and (c.wanted -> 'gte' is null or m.value >= c.wanted -> 'gte')
                   and (c.wanted -> 'gt' is null or m.value > c.wanted -> 'gt')
                   and (c.wanted -> 'lte' is null or m.value <= c.wanted -> 'lte')
                   and (c.wanted -> 'lt' is null or m.value < c.wanted -> 'lt'), false))
$$;

-- Whether a note, live or not, is as a filter says. A field that the filter lacks allows every value.
create function elf_is_of(n memory_notes, filter jsonb) returns boolean language sql stable as $$
    select (filter->>'tenant_id' is null or n.tenant_id::text = filter->>'tenant_id')
           and (filter->>'project_id' is null or n.project_id::text = filter->>'project_id')
           and (filter->>'agent_id' is null or n.agent_id::text = filter->>'agent_id')
           and (filter->>'scope' is null or n.scope::text = filter->>'scope')
           and (filter->>'type' is null or n.type::text = filter->>'type')
           and (filter->>'key' is null or n.key::text = filter->>'key')
           and (filter->>'source' is null or n.source::text = filter->>'source')
           and (filter->>'status' is null or n.status::text = filter->>'status')
           and (filter->>'updated_after' is null
                or n.updated_at >= (filter->>'updated_after')::timestamptz)
           and (filter->>'updated_before' is null
                or n.updated_at < (filter->>'updated_before')::timestamptz)
           and (filter->>'min_importance' is null
                or elf_number(n.importance) >= (filter->>'min_importance')::real)
           and (filter->'metadata' is null or elf_meets(n.metadata, filter->'metadata'))
$$;

create function elf_is_like(n memory_notes, filter jsonb) returns boolean language sql stable as $$
    select elf_is_live(n) and elf_is_of(n, filter)
$$;

-- Whether a key of the HTTP API reaches a note. A project or an agent that is null stands for all.
create function elf_is_reached(n memory_notes, tenant text, project text, agent text) returns boolean
language sql stable as $$
    select n.tenant_id::text = tenant
           and (project is null or n.project_id::text = project)
           and (agent is null or n.agent_id::text = agent)
$$;

-- Whether a client may change a note. The next change of its row, or a sync, would undo what it changes of a note that
-- follows one: that is refused.
create function elf_may_change(n memory_notes) returns boolean language plpgsql stable as $$
begin
    if n.source is not null and exists (select from elf_sources s where s.source = n.source::text) then
        raise exception 'the note % follows a row of the source %: change or delete that row', n.note_id, n.source
            using constraint = 'elf_may_change';
    end if;
    return true;
end $$;

-- A note as ELF reads it. The application may have made the table, so every column but the id may be null, of
-- another type or out of range. Such a row must not fail the statement for the other notes. A caller that
-- does not name `text` or `source_ref` does not read it, and `octet_length` of a large text does not read it either.
create function elf_note(uuid)
returns table (note_id uuid, text text, text_bytes int, status text, is_live boolean, expires_at timestamptz,
               tenant_id text, project_id text, agent_id text, scope text, kind text, key text, source text, source_id text, title text,
               importance real, confidence real, updated_at timestamptz, source_ref jsonb, metadata jsonb)
language sql stable as $$
    select n.note_id, n.text::text, octet_length(n.text::text), coalesce(n.status::text, ''), elf_is_live(n),
           elf_time(n.expires_at), coalesce(n.tenant_id::text, ''), coalesce(n.project_id::text, ''),
           coalesce(n.agent_id::text, ''), coalesce(n.scope::text, ''), coalesce(n.type::text, ''),
           n.key::text, n.source::text, n.source_id::text, elf_title(n.title::text), elf_number(n.importance), elf_number(n.confidence),
           elf_time(coalesce(n.updated_at, 'epoch')), n.source_ref, n.metadata
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

-- A chunk, the chunks of a note, and the vector of a chunk, under a version: look-ups by a key, which no plan turns
-- (sql/README.md).
create function elf_chunk(uuid, text) returns setof memory_note_chunks language sql stable as $$
    select * from memory_note_chunks c where c.chunk_id = $1 and c.embedding_version is not distinct from $2 offset 0
$$;
create function elf_chunks_of(uuid, text) returns setof memory_note_chunks language sql stable as $$
    select * from memory_note_chunks c where c.note_id = $1 and c.embedding_version is not distinct from $2 offset 0
$$;
create function elf_vector(uuid, text) returns setof note_chunk_embeddings language sql stable as $$
    select * from note_chunk_embeddings e where e.chunk_id = $1 and e.embedding_version = $2 offset 0
$$;

-- The vector of a text in a vector space, from any note and any version of the space. For each version Postgres reads
-- one row of the index on both, even if many chunks have that text. Chunks that have a vector come first.
create function elf_known_vector(space text, hash bytea) returns setof note_chunk_embeddings language sql stable as $$
    select e.*
      from index_versions v
     cross join lateral (
            select c.chunk_id, c.embedding_version, c.text_sha256
              from memory_note_chunks c
             where c.embedding_version = v.embedding_version
               and (c.text_sha256, c.awaits_vector) >= (hash, false)
             order by c.text_sha256, c.awaits_vector
             limit 1) c
     cross join lateral elf_vector(c.chunk_id, c.embedding_version) e
     where v.vector_space = space and c.text_sha256 = hash
     limit 1
$$;

-- Whether a worker holds a note. A lease that was taken later than now was taken before the clock of Postgres
-- went back, and is none.
create function elf_is_leased(s note_index_state) returns boolean language sql volatile as $$
    select s.lease_until > now() and (s.leased_at > clock_timestamp()) is not true
$$;

-- Whether a lease is free. A lease lasts `seconds`. One that ends after more than two times that began before the
-- clock of Postgres went back.
create function elf_is_free(lease_until timestamptz, seconds float8) returns boolean language sql stable as $$
    select (lease_until > now() and lease_until <= now() + make_interval(secs => 2::float8 * seconds)) is not true
$$;

-- Whether the next claim takes an outbox row. A row for later asks for one more round then, whatever is done
-- before. A row that was written before the clock went back is not for later.
create function elf_is_for_now(o indexing_outbox) returns boolean language sql stable as $$
    select o.status <> 'PENDING' or o.available_at <= greatest(now(), o.created_at)
$$;

-- The outbox rows of a note that are for now, or dead-lettered: while it has one, a worker or an operator has yet to do
-- something for it.
create function elf_open_rows(uuid, text) returns setof indexing_outbox language sql stable as $$
    select *
      from indexing_outbox o
     where o.note_id = $1 and o.status <> 'DONE' and elf_is_for_now(o)
       and (o.embedding_version = $2 or o.embedding_version is null)
    offset 0
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

-- A hash of the functions and triggers of a source: another hash means that a role has changed them. Postgres puts
-- triggers on partitions itself.
create function elf_source_objects(source text, of_table text) returns bytea language sql stable as $$
    select pg_catalog.sha256(pg_catalog.convert_to(pg_catalog.string_agg(o.made, '' order by o.made), 'UTF8'))
      from (select pg_catalog.pg_get_functiondef(p.oid) as made
              from pg_catalog.pg_proc p
             where p.pronamespace = (select c.relnamespace from pg_catalog.pg_class c
                                      where c.oid = 'elf_sources'::pg_catalog.regclass::pg_catalog.oid)
               and p.proname::text in ('elf_source_' || source, 'elf_source_' || source || '$rows', 'elf_source_' || source || '$gone',
                                       'elf_source_' || source || '$put',
                                       'elf_source_' || source || '$try', 'elf_source_' || source || '$page',
                                       'elf_source_' || source || '$notes', 'elf_source_' || source || '$touch')
            union all
            select pg_catalog.pg_get_triggerdef(t.oid) || t.tgenabled::text
              from pg_catalog.pg_trigger t
             where t.tgrelid = pg_catalog.to_regclass(of_table)::pg_catalog.oid
               and t.tgname::text in ('elf_source_' || source || '_inserted', 'elf_source_' || source || '_updated',
                                      'elf_source_' || source || '_deleted', 'elf_source_' || source || '_truncated')) o
$$;

-- Makes the notes of rows of a source equal to them again: `elf_touch('tickets', 17, 18)`. A key of several columns is a
-- JSON array. Applications call it when something changes elsewhere that `text_sql` or `metadata_sql` reads.
do $do$ begin
    execute pg_catalog.format($sql$
create function elf_touch(source text, variadic ids text[]) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $body$
begin
    -- No source is no reason to fail a statement of the application: it may be removed for a while, or not applied yet.
    if to_regprocedure(format('%1$I.%%I(text[])', 'elf_source_' || source || '$touch')) is null then
        raise warning 'elf_touch: there is no source %%, so no note changes', source;
        return;
    end if;
    execute format('select %1$I.%%I($1)', 'elf_source_' || source || '$touch') using ids;
end $body$;
create function elf_touch(source text, variadic ids anyarray) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $body$
begin
    perform %1$I.elf_touch(source, variadic ids::text[]);
end $body$$sql$, current_schema());
end $do$;
