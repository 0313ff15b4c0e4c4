//! Postgres: the truth. Every statement of more than a line is a file under
//! `sql/queries/`, checked against the real schema when ELF is compiled.

mod claim;
mod commit;
mod listen;
mod notes;
mod report;
mod schema;
mod versions;

use std::str::FromStr;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{PgPool, Postgres, Transaction};

pub use claim::{Claim, Claimed, Retry};
pub use commit::{ChunkWrite, Committed, NoteWrite};
pub use listen::listen;
pub use notes::{ChunkText, ImportedNote, Selection};
pub use report::{DeadLetter, NoteCounts, OutboxCounts};
pub use versions::{Collection, Version};

/// ELF's side of a Postgres database.
#[derive(Clone, Debug)]
pub struct Store {
    pool: PgPool,
}

/// Why Postgres did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Postgres is away, full or busy; the same request may work later.
    #[error("Postgres is unavailable: {0}")]
    Unavailable(String),
    /// The database is not as this program needs it.
    #[error("{0}")]
    Schema(String),
    /// A statement failed. A bug, or a database that somebody else changed.
    #[error("Postgres rejected a statement: {0}")]
    Rejected(#[source] sqlx::Error),
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        let passes = match &error {
            sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::Protocol(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::WorkerCrashed => true,
            sqlx::Error::Database(e) => e.code().is_some_and(|code| is_passing(&code)),
            _ => false,
        };
        if passes {
            Self::Unavailable(error.to_string())
        } else {
            Self::Rejected(error)
        }
    }
}

/// Whether an SQLSTATE is a state of the server and not a fault of the statement:
/// connection exception, transaction rollback (deadlock), insufficient
/// resources, operator intervention, system error, read-only while failing over,
/// a transaction that we left idle for too long.
fn is_passing(sqlstate: &str) -> bool {
    ["08", "40", "53", "57", "58"]
        .iter()
        .any(|class| sqlstate.starts_with(class))
        || ["25006", "25P03"].contains(&sqlstate)
}

impl Store {
    /// Connects, or says why not within a few seconds.
    pub async fn connect(dsn: &str, max_connections: u32) -> Result<Self, StoreError> {
        let options = PgConnectOptions::from_str(dsn)
            .map_err(|e| StoreError::Schema(format!("storage.postgres.dsn: {e}")))?
            .application_name("elf");
        let pool = PgPoolOptions::new()
            .max_connections(max_connections)
            .acquire_timeout(Duration::from_secs(5))
            .connect_with(options)
            .await?;
        Ok(Self { pool })
    }

    /// Whether Postgres answers.
    pub async fn ping(&self) -> Result<(), StoreError> {
        sqlx::query("select 1").execute(&self.pool).await?;
        Ok(())
    }

    /// The pool, for what needs a connection of its own kind.
    pub fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// A process that is stopped or cut off in a transaction would keep its locks
    /// on notes for as long as that lasts, and an application's delete would wait.
    async fn begin(&self) -> Result<Transaction<'static, Postgres>, StoreError> {
        let begin = "begin; set local idle_in_transaction_session_timeout = '5s'";
        Ok(self.pool.begin_with(begin).await?)
    }
}
