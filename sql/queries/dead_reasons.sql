-- Dead letters by what rejected them. Of a retired version nobody is waiting for any.
select coalesce(o.failed_by, 'unknown') as "reason!", count(*) as "letters!"
  from indexing_outbox o
  left join index_versions v on v.embedding_version = o.embedding_version
 where o.status = 'DEAD' and v.state is distinct from 'retired'
 group by 1
