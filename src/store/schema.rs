//! Migrations, and whether a database is as this program needs it.

use std::collections::BTreeMap;

use sqlx::PgConnection;
use sqlx::migrate::{Migrate, MigrateError, Migration, Migrator};

use super::rights::check_row_security;
use super::{Store, StoreError};

/// Beside the application's own migrations, which may well use sqlx too.
const MIGRATIONS_TABLE: &str = "elf_migrations";

fn migrator() -> Migrator {
    let mut migrator = sqlx::migrate!("sql/migrations");
    migrator.dangerous_set_table_name(MIGRATIONS_TABLE);
    // A newer ELF may have been here: `check_schema` says so in better words.
    migrator.set_ignore_missing(true);
    migrator
}

impl Store {
    /// Brings the schema up to date and returns how many migrations that took.
    /// Safe to run again, and at the same time elsewhere.
    pub async fn migrate(&self) -> Result<usize, StoreError> {
        let mut conn = self.pool.acquire().await?;
        let before = applied(&mut conn).await?;
        check_not_newer(&before)?;
        check_notes_table(&mut conn).await?;
        let migrator = migrator();
        // Without the lock of a session that a migration takes, which behind a PgBouncer in
        // transaction mode may be nobody's.
        let is_applied = |m: &Migration| {
            before
                .get(&m.version)
                .is_some_and(|sum| sum[..] == m.checksum[..])
        };
        if migrator.iter().all(is_applied) {
            return Ok(0);
        }
        migrator.run(&mut conn).await.map_err(not_migrated)?;
        let after = applied(&mut conn).await?;
        Ok(after.len() - before.len())
    }

    /// Whether the schema is exactly the one that this program was built for.
    pub async fn check_schema(&self) -> Result<(), StoreError> {
        let work = async {
            let mut conn = self.pool.acquire().await?;
            let applied = applied(&mut conn).await?;
            check_not_newer(&applied)?;
            let migrator = migrator();
            let missing = migrator
                .iter()
                .filter(|m| !applied.contains_key(&m.version))
                .count();
            if missing > 0 {
                return Err(StoreError::Outdated(missing));
            }
            if migrator.iter().any(|m| {
                applied
                    .get(&m.version)
                    .is_some_and(|sum| sum[..] != m.checksum[..])
            }) {
                return Err(StoreError::Schema(
                    "the database schema was made by a different build of elf: its migrations differ \
                     from this program's; run the elf that made it"
                        .into(),
                ));
            }
            check_notes_table(&mut conn).await
        };
        self.answered(1, work).await
    }
}

/// Version → checksum of what has been applied.
async fn applied(conn: &mut PgConnection) -> Result<BTreeMap<i64, Vec<u8>>, StoreError> {
    let exists: bool = sqlx::query_scalar("select to_regclass($1) is not null")
        .bind(MIGRATIONS_TABLE)
        .fetch_one(&mut *conn)
        .await?;
    if !exists {
        return Ok(BTreeMap::new());
    }
    let rows = conn
        .list_applied_migrations(MIGRATIONS_TABLE)
        .await
        .map_err(|e| StoreError::Unavailable(format!("could not read {MIGRATIONS_TABLE}: {e}")))?;
    Ok(rows
        .into_iter()
        .map(|m| (m.version, m.checksum.into_owned()))
        .collect())
}

fn not_migrated(error: MigrateError) -> StoreError {
    let reason = error.to_string();
    if let MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) = error
        && let away @ StoreError::Unavailable(_) = StoreError::from(error)
    {
        return away;
    }
    StoreError::Schema(format!(
        "a migration failed, and was rolled back: {reason}; ELF needs to create tables and \
         functions in the current schema, and the pgvector extension \
         (`create extension vector` as a superuser)"
    ))
}

fn check_not_newer(applied: &BTreeMap<i64, Vec<u8>>) -> Result<(), StoreError> {
    let known = migrator().iter().map(|m| m.version).max().unwrap_or(0);
    match applied.keys().max() {
        Some(&newest) if newest > known => Err(StoreError::Schema(format!(
            "the database schema (migration {newest}) is newer than this elf (migration {known}): \
             upgrade elf"
        ))),
        _ => Ok(()),
    }
}

/// What ELF reads of `memory_notes`, and the types it can read it from.
const NOTE_COLUMNS: &[(&str, &[&str])] = &[
    ("note_id", &["uuid"]),
    ("tenant_id", &["text", "character varying", "uuid"]),
    ("project_id", &["text", "character varying", "uuid"]),
    ("agent_id", &["text", "character varying", "uuid"]),
    ("scope", &["text", "character varying", "USER-DEFINED"]),
    ("type", &["text", "character varying", "USER-DEFINED"]),
    ("key", &["text", "character varying"]),
    ("text", &["text", "character varying"]),
    ("importance", &["real", "double precision", "numeric"]),
    ("confidence", &["real", "double precision", "numeric"]),
    ("status", &["text", "character varying"]),
    ("updated_at", &["timestamp with time zone"]),
    ("expires_at", &["timestamp with time zone"]),
];

/// A `memory_notes` that the application made must have what ELF reads. No such
/// table is fine: the first migration makes it.
async fn check_notes_table(conn: &mut PgConnection) -> Result<(), StoreError> {
    let columns: Vec<(String, String)> = sqlx::query_as(
        "select column_name::text, data_type::text from information_schema.columns
          where table_name = 'memory_notes' and table_schema = any (current_schemas(false))",
    )
    .fetch_all(&mut *conn)
    .await?;
    if columns.is_empty() {
        return Ok(());
    }
    let mut problems = note_column_problems(&columns.into_iter().collect());
    let unique: bool = sqlx::query_scalar(
        "select exists (select from pg_index i
                          join pg_attribute a on a.attrelid = i.indrelid and a.attnum = i.indkey[0]
                         where i.indrelid = to_regclass('memory_notes') and i.indisunique
                           and i.indnkeyatts = 1 and i.indpred is null
                           and a.attname = 'note_id')",
    )
    .fetch_one(&mut *conn)
    .await?;
    if !unique {
        problems.push("note_id is neither the primary key nor unique by itself".into());
    }
    if problems.is_empty() {
        return check_row_security(conn).await;
    }
    Err(StoreError::Schema(format!(
        "the table memory_notes lacks what ELF reads: {}; add it and run `elf migrate` again \
         (sql/README.md has the whole table)",
        problems.join("; ")
    )))
}

fn note_column_problems(columns: &BTreeMap<String, String>) -> Vec<String> {
    NOTE_COLUMNS
        .iter()
        .filter_map(|(name, types)| match columns.get(*name) {
            None => Some(format!("column {name} ({}) is missing", types[0])),
            Some(found) if !types.contains(&found.as_str()) => {
                Some(format!("column {name} is {found}, not {}", types[0]))
            }
            Some(_) => None,
        })
        .collect()
}

/// Makes sure that nobody else sets up the index of this database meanwhile; the
/// lock goes with the connection.
pub(super) async fn lock_setup(conn: &mut PgConnection) -> Result<(), StoreError> {
    // The key is arbitrary and ELF's own.
    sqlx::query("select pg_advisory_xact_lock(0x656c66)")
        .execute(conn)
        .await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_that_lacks_columns_is_described_by_what_is_missing() {
        let mut columns: BTreeMap<String, String> = NOTE_COLUMNS
            .iter()
            .map(|(n, t)| ((*n).into(), t[0].into()))
            .collect();
        assert_eq!(note_column_problems(&columns), Vec::<String>::new());
        columns.remove("scope");
        columns.insert("expires_at".into(), "date".into());
        assert_eq!(
            note_column_problems(&columns),
            [
                "column scope (text) is missing",
                "column expires_at is date, not timestamp with time zone"
            ]
        );
    }
}
