-- Those of these ids whose rows are gone. Compiled when it is made, as the rows are.
create function {gone}(text[]) returns setof text
language sql stable begin atomic
    select k.source_id
      from unnest($1) as k (source_id)
     where (select true from {only}{table} as r where ({columns}) = ({key}) limit 1) is not true;
end;
revoke all on function {gone} from public;
