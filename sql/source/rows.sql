-- The rows of these keys that are notes, as notes, with the reason why one cannot be a note. Its body is compiled when it is
-- made: neither a view in place of the table nor a new cast gets the rights of the function that calls it, and a renamed
-- column keeps its place. `offset 0`: Postgres makes each value once.
create function {rows}({key_types}) returns table (note_id uuid, source_id text, {columns}, reason text)
language sql stable begin atomic
    select {note_id}, i.source_id,
           {wanted},
           case when i.tenant_id is null then 'it has no tenant_id'
                when octet_length(i.text) > 67108864 then 'the text has more than 64 MB'
                when (get_byte(i.bytes, 0) between 33 and 126) is not true and i.text !~ E'\\S' then 'it has no text'
                when greatest(octet_length(i.tenant_id), octet_length(i.project_id), octet_length(i.agent_id),
                              octet_length(i.scope), octet_length(i.type), octet_length(i.key)) > 1000
                     then 'a label or the key has more than 1,000 bytes'
                when jsonb_typeof(i.metadata) <> 'object' then 'its metadata is no object'
                when octet_length(i.metadata::text) > 65536 then 'its metadata has more than 64 KiB'
                when octet_length(i.source_id) > 2000 then 'its primary key has more than 2,000 bytes'
           end
      from (select v.*, case when octet_length(v.text) between 1 and 67108864 then convert_to(v.text, 'UTF8') end as bytes
              from (select {source_id} as source_id,
                           {values}
                      from {only}{table} as {alias}
                     where {is_key}
                       and ({condition})
                    offset 0) v
            offset 0) i;
end;
revoke all on function {rows} from public;
