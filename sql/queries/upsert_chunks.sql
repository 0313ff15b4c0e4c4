-- $1 version, $2 token, then one array per column
insert into memory_note_chunks as c
       (embedding_version, revision, chunk_id, note_id, chunk_index, start_offset, end_offset,
        text, text_sha256, awaits_vector)
select $1, $2, u.*
  from unnest($3::uuid[], $4::uuid[], $5::int[], $6::int[], $7::int[], $8::text[], $9::bytea[],
              $10::bool[]) u
on conflict (chunk_id, embedding_version) do update
   set revision = excluded.revision,
       start_offset = excluded.start_offset,
       end_offset = excluded.end_offset,
       text = excluded.text,
       text_sha256 = excluded.text_sha256,
       awaits_vector = excluded.awaits_vector
