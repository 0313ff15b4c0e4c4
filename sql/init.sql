-- The schema of a new database. `elf migrate` runs these files in one transaction, as migration 1, after it has built
-- the indexes of a memory_notes that exists already, without blocking it. By hand, for a look at the schema:
--
--     psql "$DATABASE_URL" --single-transaction --file sql/init.sql

create extension if not exists vector;

\ir tables/elf_schema.sql
\ir tables/elf_api_keys.sql
\ir tables/elf_metadata_fields.sql
\ir tables/elf_sources.sql
\ir tables/index_versions.sql
\ir tables/index_canary.sql
\ir tables/index_collections.sql
\ir tables/index_rebuild_ranges.sql
\ir tables/index_job.sql
\ir tables/index_upkeep.sql
\ir tables/search_traces.sql
\ir tables/search_trace_items.sql
\ir tables/memory_hits.sql
\ir tables/indexing_outbox.sql
\ir tables/note_index_state.sql
\ir tables/memory_notes.sql
\ir tables/memory_note_chunks.sql
\ir tables/note_chunk_embeddings.sql
\ir tables/note_embeddings.sql
\ir functions.sql
\ir private_tables.sql
