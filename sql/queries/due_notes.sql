-- The number of notes that are due, or were when a worker leased them, and the bytes of the texts of the live ones.
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
       coalesce(sum(n.text_bytes) filter (where n.is_live), 0)::bigint as "bytes!"
  from due d
  left join lateral elf_note(d.note_id) n on true
