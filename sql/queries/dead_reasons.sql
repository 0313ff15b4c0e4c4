-- Counts dead letters by what rejected the note, without those of retired versions.
select coalesce(o.failed_by, 'unknown') as "reason!", count(*) as "letters!"
  from indexing_outbox o
  left join index_versions v on v.embedding_version = o.embedding_version
 where o.status = 'DEAD' and v.state is distinct from 'retired'
 group by 1
