//! Checks whether the schema of a database fits this program.

use std::collections::BTreeMap;

use sqlx::PgConnection;
use sqlx::migrate::{Migrate, Migrator};

use super::placement::{self, Purpose};
use super::rights::check_row_security;
use super::{Limit, Store, StoreError, tables};

/// Not the default name of sqlx: the application may use sqlx for its own migrations.
pub(super) const MIGRATIONS_TABLE: &str = "elf_migrations";

/// Version → checksum of the applied migrations.
pub(super) type Applied = BTreeMap<i64, Vec<u8>>;

/// The migrations of this program: the schema of a new database, then what `sql/migrations` changes in it.
pub fn migrator() -> Migrator {
    let mut migrator = sqlx::migrate!("sql/migrations");
    migrator.migrations.to_mut().insert(0, tables::first());
    migrator.dangerous_set_table_name(MIGRATIONS_TABLE);
    migrator
}

impl Store {
    /// Whether this program may work with the schema: its own, or a newer one that still supports
    /// this program.
    pub async fn check_schema(&self) -> Result<(), StoreError> {
        let work = async {
            let mut conn = self.pool.acquire().await?;
            placement::check(&mut conn, Purpose::Work).await?;
            let applied = applied(&mut conn).await?;
            let migrator = migrator();
            check_compatible(&mut conn, &migrator, &applied).await?;
            let missing = migrator
                .iter()
                .filter(|m| !applied.contains_key(&m.version))
                .count();
            if applied.is_empty() {
                let database = sqlx::query_scalar("select quote_ident(current_database())");
                let database = database.fetch_one(&mut *conn).await?;
                return Err(StoreError::NotMigrated(database));
            }
            if missing > 0 {
                return Err(StoreError::Outdated(missing));
            }
            check_same_build(&migrator, &applied)?;
            check_encoding(&mut conn).await?;
            match check_notes_table(&mut conn).await? {
                true => Ok(()),
                false => Err(no_notes_table()),
            }
        };
        self.answered(Limit::Statement, work).await
    }
}

/// Checks whether a schema with migrations that this program does not know still supports it.
/// During an upgrade old and new workers run side by side.
pub(super) async fn check_compatible(
    conn: &mut PgConnection,
    migrator: &Migrator,
    applied: &Applied,
) -> Result<(), StoreError> {
    let known = migrator.iter().map(|m| m.version).max().unwrap_or(0);
    let newest = applied.keys().max().copied().unwrap_or(0);
    if newest <= known {
        return Ok(());
    }
    let oldest: i64 = sqlx::query_scalar("select oldest_program from elf_schema")
        .fetch_one(conn)
        .await?;
    if oldest <= known {
        return Ok(());
    }
    Err(StoreError::Schema(format!(
        "the database schema (migration {newest}) is newer than this elf (migration {known}), and \
         needs an elf that knows migration {oldest}: upgrade elf"
    )))
}

/// Whether the applied migrations have the checksums of this program's migrations.
pub(super) fn check_same_build(migrator: &Migrator, applied: &Applied) -> Result<(), StoreError> {
    let differs = |(version, sum): (&i64, &Vec<u8>)| {
        let mut own = migrator.iter().filter(|m| m.version == *version);
        own.any(|m| m.checksum[..] != sum[..])
    };
    if applied.iter().any(differs) {
        return Err(StoreError::Schema(
            "the database schema was made by a different build of elf: its migrations differ \
             from this program's; run the elf that made it"
                .into(),
        ));
    }
    Ok(())
}

/// Whether there is a table of the applied migrations.
pub(super) async fn applied_exists(conn: &mut PgConnection) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar("select to_regclass($1) is not null")
        .bind(MIGRATIONS_TABLE)
        .fetch_one(conn)
        .await
}

/// The applied migrations.
pub(super) async fn applied(conn: &mut PgConnection) -> Result<Applied, StoreError> {
    if !applied_exists(conn).await? {
        return Ok(Applied::new());
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

/// The columns of `memory_notes` that ELF reads, and the types it can read.
const NOTE_COLUMNS: &[(&str, &[&str])] = &[
    ("note_id", &["uuid"]),
    ("tenant_id", &["text", "character varying", "uuid"]),
    ("project_id", &["text", "character varying", "uuid"]),
    ("agent_id", &["text", "character varying", "uuid"]),
    ("scope", &["text", "character varying", "USER-DEFINED"]),
    ("type", &["text", "character varying", "USER-DEFINED"]),
    ("key", &["text", "character varying"]),
    ("title", &["text", "character varying"]),
    ("text", &["text", "character varying"]),
    ("importance", &["real", "double precision", "numeric"]),
    ("confidence", &["real", "double precision", "numeric"]),
    ("status", &["text", "character varying"]),
    ("updated_at", &["timestamp with time zone"]),
    ("expires_at", &["timestamp with time zone"]),
    ("source_ref", &["jsonb"]),
    ("metadata", &["jsonb"]),
];

/// Checks that every text of the database is UTF-8. In another encoding, Postgres can hold texts that
/// the driver cannot read, and refuses the parts of other languages in what ELF writes.
pub(super) async fn check_encoding(conn: &mut PgConnection) -> Result<(), StoreError> {
    let encoding: String = sqlx::query_scalar("select current_setting('server_encoding')")
        .fetch_one(conn)
        .await?;
    match encoding.as_str() {
        "UTF8" => Ok(()),
        _ => Err(StoreError::Schema(format!(
            "the database has the encoding {encoding}, and ELF needs UTF8: make a database with \
             `create database … encoding 'UTF8' locale 'C' template template0` (or another locale \
             of UTF-8), copy the tables into it with pg_dump and pg_restore, and change \
             storage.postgres.dsn"
        ))),
    }
}

/// After all migrations.
pub(super) fn no_notes_table() -> StoreError {
    StoreError::Schema(
        "the table memory_notes is missing: it was dropped or renamed after `elf migrate`".into(),
    )
}

/// Checks a `memory_notes` that the application made for the columns that ELF reads. Returns whether
/// there is one: the first migration makes it.
pub(super) async fn check_notes_table(conn: &mut PgConnection) -> Result<bool, StoreError> {
    let columns: Vec<(String, String)> = sqlx::query_as(
        "select column_name::text, data_type::text from information_schema.columns
          where table_name = 'memory_notes' and table_schema = (
                select nspname from pg_class c join pg_namespace n on n.oid = c.relnamespace
                 where c.oid = to_regclass('memory_notes'))",
    )
    .fetch_all(&mut *conn)
    .await?;
    if columns.is_empty() {
        return Ok(false);
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
        check_row_security(conn).await?;
        return Ok(true);
    }
    Err(StoreError::Schema(format!(
        "the table memory_notes lacks what ELF reads: {}; add it and run `elf migrate` again \
         (docs/reference/sql.md has the whole table)",
        problems.join("; ")
    )))
}

fn note_column_problems(columns: &BTreeMap<String, String>) -> Vec<String> {
    NOTE_COLUMNS
        .iter()
        .filter_map(|(name, types)| match columns.get(*name) {
            // The migration adds it.
            None if *name == "metadata" => None,
            None => Some(format!("column {name} ({}) is missing", types[0])),
            Some(found) if !types.contains(&found.as_str()) => {
                Some(format!("column {name} is {found}, not {}", types[0]))
            }
            Some(_) => None,
        })
        .collect()
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
