//! The type of the columns of vectors in Postgres.
//!
//! Statements that return a vector cast it to `vector`, and Postgres casts what they write to the type of the
//! column. So nothing else in ELF depends on the type.

use sqlx::{AssertSqlSafe, PgConnection};

use super::migrations::{is_locked_out, pause};
use super::setup_lock::WITHOUT_TIMEOUTS;
use super::{Store, StoreError};
use crate::config::VectorType;

/// In the order in which Postgres deletes their rows with a note: it locks them in this order.
const TABLES: [&str; 2] = ["note_embeddings", "note_chunk_embeddings"];

/// Shorter than Postgres waits before it looks for a deadlock (`deadlock_timeout`, a second): if two wait for
/// each other, the migration is the one that gives way.
const LOCK_TIMEOUT: &str = "900ms";

impl Store {
    /// Fails if the columns of vectors are of another type.
    pub async fn check_vector_type(&self, configured: VectorType) -> Result<(), StoreError> {
        let mut conn = self.pool.acquire().await?;
        match other_type(&mut conn, configured).await? {
            None => Ok(()),
            Some(found) => Err(StoreError::OtherVectorType {
                found,
                configured: configured.name(),
            }),
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
        let lock = self.lock_migrations().await?;
        conn.close_on_drop();
        let mut session = conn;
        // Another process may have changed them while this one waited.
        let is_changed = other_type(&mut session, wanted).await?.is_some();
        if is_changed {
            change(&mut session, wanted).await?;
        }
        lock.release().await?;
        Ok(is_changed)
    }
}

/// Rewrites the tables. It takes both locks first: Postgres never discards a rewrite for want of a lock.
async fn change(session: &mut PgConnection, wanted: VectorType) -> Result<(), StoreError> {
    let name = wanted.name();
    let change = |table| format!("alter table {table} alter vec type {name} using vec::{name};");
    // Postgres executes the statements of one string in one transaction.
    let statements = format!(
        "{WITHOUT_TIMEOUTS} set local lock_timeout = '{LOCK_TIMEOUT}';
         lock table {} in access exclusive mode; {}",
        TABLES.join(", "),
        TABLES.map(change).concat(),
    );
    tracing::info!(r#type = name, "rewriting the tables of vectors");
    for tries in 1.. {
        let changed = sqlx::raw_sql(AssertSqlSafe(statements.clone()))
            .execute(&mut *session)
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
    Ok(())
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
    let reason = error.to_string();
    let code = error.as_database_error().and_then(|error| error.code());
    let hint = match code.as_deref() {
        // No such type; a number out of its range.
        Some("42704") => "; it needs pgvector 0.7 or newer: `alter extension vector update`",
        Some("22003") => "; its numbers go up to 65,504",
        _ => "",
    };
    match StoreError::from(error) {
        passing if passing.class().may_pass() => passing,
        _ => StoreError::Schema(format!(
            "failed to change the vectors in Postgres to the type {name}, and they are as before: \
             {reason}{hint}"
        )),
    }
}
