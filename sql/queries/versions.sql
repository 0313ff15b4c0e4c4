-- All versions: the active one, then those that are built, then the retired ones, the latest first.
select embedding_version, embedding_dim, settings, state as "state: Lifecycle", state_since, enqueued
  from index_versions
 order by pg_catalog.array_position(array['active', 'building', 'retired'], state), state_since desc,
          embedding_version
