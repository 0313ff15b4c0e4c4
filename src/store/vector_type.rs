//! The type of the columns of vectors in Postgres.
//!
//! Each statement reads vectors as `vector`, and Postgres casts what it writes to the type of the column.
//! So nothing else in ELF depends on the type.

use sqlx::{AssertSqlSafe, Connection, PgConnection};

use super::migrations::{LOCK_TIMEOUT, is_locked_out, pause};
use super::{Store, StoreError};
use crate::config::VectorType;

/// In the order in which a commit writes them.
const TABLES: [&str; 2] = ["note_chunk_embeddings", "note_embeddings"];

impl Store {
    /// Fails if the columns of vectors are of another type.
    pub async fn check_vector_type(&self, configured: VectorType) -> Result<(), StoreError> {
        let mut conn = self.pool.acquire().await?;
        match other_type(&mut conn, configured).await? {
            None => Ok(()),
            Some(found) => Err(StoreError::Schema(format!(
                "the vectors in Postgres are of the type {found}, and storage.postgres.vector_type is {:?}: \
                 run `elf migrate`, which rewrites their tables, or change the setting",
                configured.name()
            ))),
        }
    }

    /// Gives the columns of vectors this type, unless they have it. Returns whether it changed them.
    ///
    /// Postgres rewrites the tables, and until it has, who uses them waits.
    pub async fn change_vector_type(&self, wanted: VectorType) -> Result<bool, StoreError> {
        let mut conn = self.pool.acquire().await?;
        if other_type(&mut conn, wanted).await?.is_none() {
            return Ok(false);
        }
        // The lock below belongs to the session and ends with it.
        let mut session = conn.detach();
        self.lock_migrations(&mut session).await?;
        let name = wanted.name();
        let change =
            |table| format!("alter table {table} alter vec type {name} using vec::{name};");
        // Postgres executes the statements of one string in one transaction.
        let changes: String = TABLES.map(change).concat();
        let statements = format!("set lock_timeout = '{LOCK_TIMEOUT}'; {changes}");
        tracing::info!(r#type = name, "rewriting the tables of vectors");
        for tries in 1.. {
            let changed = sqlx::raw_sql(AssertSqlSafe(statements.clone()))
                .execute(&mut session)
                .await;
            match changed {
                Ok(_) => break,
                Err(error) if is_locked_out(&error) => {
                    tracing::warn!("tables of vectors are in use, retrying to rewrite them");
                }
                Err(error) => return Err(not_changed(name, error)),
            }
            pause(tries).await;
        }
        session.close().await?;
        Ok(true)
    }
}

/// The type of columns of vectors that are not of this one.
async fn other_type(
    conn: &mut PgConnection,
    wanted: VectorType,
) -> Result<Option<String>, StoreError> {
    let found = sqlx::query_scalar(
        "select t.typname::text
           from unnest($1::text[]) u (name)
           join pg_attribute a on a.attrelid = to_regclass(u.name) and a.attname = 'vec'
           join pg_type t on t.oid = a.atttypid
          where t.typname <> $2
          limit 1",
    )
    .bind(TABLES)
    .bind(wanted.name())
    .fetch_optional(conn)
    .await?;
    Ok(found)
}

fn not_changed(name: &str, error: sqlx::Error) -> StoreError {
    match error.as_database_error() {
        Some(reason) => StoreError::Schema(format!(
            "the vectors in Postgres are as before, because it cannot change their type to {name}: {}; \
             halfvec needs pgvector 0.7 or newer (`alter extension vector update`), and numbers up to 65,504",
            reason.message()
        )),
        None => error.into(),
    }
}
