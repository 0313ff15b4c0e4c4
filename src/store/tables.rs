//! The schema of a new database, which is migration 1: the files that `sql/init.sql` names.

use sqlx::migrate::{Migration, MigrationType};
use sqlx::{AssertSqlSafe, SqlSafeStr};

/// The version of the migration that makes the schema.
pub(super) const FIRST: i64 = 1;

macro_rules! schema {
    ($($file:literal)*) => {
        #[cfg(test)]
        const FILES: &[&str] = &[$($file),*];
        const SQL: &str = concat!($(include_str!(concat!("../../sql/", $file))),*);
    };
}

schema! {
    "tables/elf_schema.sql"
    "tables/elf_api_keys.sql"
    "tables/index_versions.sql"
    "tables/index_canary.sql"
    "tables/index_collections.sql"
    "tables/index_rebuild_ranges.sql"
    "tables/index_job.sql"
    "tables/index_upkeep.sql"
    "tables/search_traces.sql"
    "tables/search_trace_items.sql"
    "tables/memory_hits.sql"
    "tables/indexing_outbox.sql"
    "tables/note_index_state.sql"
    "tables/memory_notes.sql"
    "tables/memory_note_chunks.sql"
    "tables/note_chunk_embeddings.sql"
    "tables/note_embeddings.sql"
    "functions.sql"
    "private_tables.sql"
}

/// The migration that makes the schema.
pub(super) fn first() -> Migration {
    let kind = MigrationType::Simple;
    Migration::new(FIRST, "schema".into(), kind, SQL.into_sql_str(), false)
}

/// The statements that build the indexes of a `memory_notes` that exists already, while its application
/// uses it. [`first`] then finds the indexes.
pub(super) fn indexes_of_notes() -> impl Iterator<Item = Migration> {
    const PLAIN: &str = "index if not exists";
    include_str!("../../sql/tables/memory_notes.sql")
        .split(";\n")
        .filter_map(|statement| Some(&statement[statement.find("\ncreate ")? + 1..]))
        .filter(|statement| statement.contains(PLAIN))
        .map(|statement| statement.replace(PLAIN, "index concurrently if not exists"))
        .map(|statement| {
            let (kind, sql) = (MigrationType::Simple, AssertSqlSafe(statement));
            Migration::new(FIRST, "index".into(), kind, sql.into_sql_str(), true)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_and_psql_run_the_same_files() {
        let of_psql = include_str!("../../sql/init.sql").lines();
        let of_psql: Vec<&str> = of_psql.filter_map(|l| l.strip_prefix("\\ir ")).collect();
        assert_eq!(of_psql, FILES);
    }

    #[test]
    fn the_indexes_of_notes_are_built_while_an_application_writes() {
        let indexes: Vec<String> = indexes_of_notes()
            .map(|index| index.sql.as_str().to_owned())
            .collect();
        let [expired, key] = &indexes[..] else {
            panic!("{indexes:?}");
        };
        let begin = "create index concurrently if not exists memory_notes_expired_idx\n";
        assert!(expired.starts_with(begin), "{expired}");
        let begin = "create unique index concurrently if not exists memory_notes_key_idx\n";
        assert!(key.starts_with(begin), "{key}");
        assert!(key.ends_with("where key <> ''"), "{key}");
    }
}
