-- Those of these texts that have a vector in the vector space of these settings. The version of the
-- settings need not be registered. index_versions.vector_space has the same expression.
-- $1 settings, $2 text hashes
select found.text_sha256 as "text_sha256!"
  from (select distinct h.hash from pg_catalog.unnest($2::bytea[]) as h (hash)) as u
 cross join lateral (
        select c.text_sha256
          from index_versions v
         cross join lateral (
                select c.chunk_id, c.embedding_version, c.text_sha256
                  from memory_note_chunks c
                 where c.embedding_version = v.embedding_version
                   and (c.text_sha256, c.awaits_vector) >= (u.hash, false)
                 order by c.text_sha256, c.awaits_vector
                 limit 1) c
         where v.vector_space = md5(
        pg_catalog.jsonb_path_query_array($1::jsonb, '$.keyvalue() ? (!(@.key starts with "chunking.")).key'::jsonpath)::text
        || pg_catalog.jsonb_path_query_array($1::jsonb, '$.keyvalue() ? (!(@.key starts with "chunking.")).value'::jsonpath)::text)
           and c.text_sha256 = u.hash
           and (select true
                  from note_chunk_embeddings e
                 where e.chunk_id = c.chunk_id and e.embedding_version = c.embedding_version)
         limit 1) found
