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
    "tables/elf_metadata_fields.sql"
    "tables/elf_sources.sql"
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

/// The statements that add ELF's columns to a `memory_notes` that exists already, and build its indexes, while its
/// application uses it. [`first`] then finds them.
pub(super) fn of_existing_notes() -> impl Iterator<Item = Migration> {
    const FILE: &str = include_str!("../../sql/tables/memory_notes.sql");
    const INDEX: &str = "index if not exists";
    let columns = FILE.find("do $columns$").zip(FILE.find("end $columns$"));
    let columns =
        columns.map(|(start, end)| (FILE[start..end].to_owned() + "end $columns$", false));
    let statements = FILE
        .split(";\n")
        .filter(|statement| statement.contains(INDEX));
    let indexes = statements.filter_map(|statement| {
        let index = &statement[statement.find("\ncreate ")? + 1..];
        Some((
            index.replace(INDEX, "index concurrently if not exists"),
            true,
        ))
    });
    columns.into_iter().chain(indexes).map(|(sql, is_index)| {
        let (kind, sql) = (MigrationType::Simple, AssertSqlSafe(sql));
        Migration::new(FIRST, "notes".into(), kind, sql.into_sql_str(), is_index)
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
    fn a_notes_table_is_prepared_while_an_application_writes() {
        let statements: Vec<String> = of_existing_notes()
            .map(|statement| statement.sql.as_str().to_owned())
            .collect();
        let [columns, expired, key, tenant, source] = &statements[..] else {
            panic!("{statements:?}");
        };
        assert!(
            columns.contains("add column if not exists source text"),
            "{columns}"
        );
        let begin = "create index concurrently if not exists memory_notes_expired_idx\n";
        assert!(expired.starts_with(begin), "{expired}");
        let begin = "create unique index concurrently if not exists memory_notes_key_idx\n";
        assert!(key.starts_with(begin), "{key}");
        assert!(key.ends_with("where key <> ''"), "{key}");
        let begin = "create index concurrently if not exists memory_notes_tenant_idx\n";
        assert!(tenant.starts_with(begin), "{tenant}");
        let begin = "create index concurrently if not exists memory_notes_source_idx\n";
        assert!(source.starts_with(begin), "{source}");
    }
}
