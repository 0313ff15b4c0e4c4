-- The number of due notes, and the bytes of the texts of the live ones.
-- $1 version
with due as materialized (
    select distinct o.note_id
      from indexing_outbox o
     where o.status in ('PENDING', 'FAILED') and o.available_at <= now()
       and (o.embedding_version = $1
            or o.embedding_version is null
               and exists (select from index_versions v
                            where v.embedding_version = $1 and v.state = 'active'))
)
select count(*) as "notes!",
       coalesce(sum(octet_length(n.text)) filter (
           where n.status = 'active' and (n.expires_at is null or n.expires_at > now())), 0)::bigint
           as "bytes!"
  from due d
  left join lateral (
        select n.text, n.status, n.expires_at
          from memory_notes n
         where n.note_id = d.note_id
        offset 0) n on true
