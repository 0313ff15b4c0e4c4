-- Those of these texts that have a vector in the vector space of these settings. The version of the
-- settings need not be registered. index_versions.vector_space has the same expression.
-- $1 settings, $2 text hashes
select u.hash as "text_sha256!"
  from (select distinct h.hash from pg_catalog.unnest($2::bytea[]) as h (hash)) as u
 cross join lateral elf_known_vector(md5(
        pg_catalog.jsonb_path_query_array($1::jsonb, '$.keyvalue() ? (!(@.key starts with "chunking.")).key'::jsonpath)::text
        || pg_catalog.jsonb_path_query_array($1::jsonb, '$.keyvalue() ? (!(@.key starts with "chunking.")).value'::jsonpath)::text),
       u.hash) e
