//! Postgres: the truth. Every statement of more than a line is a file under
//! `sql/queries/`, checked against the real schema when ELF is compiled.

mod access;
mod chunks;
mod claim;
mod collections;
mod commit;
mod jobs;
mod lifecycle;
mod limit;
mod listen;
mod migrations;
mod notes;
mod report;
mod rights;
mod schema;
mod upkeep;
mod verify_runs;
mod versions;

use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::TryFutureExt;
use futures::future::BoxFuture;
use metrics::{counter, histogram};
use sqlx::postgres::{PgArguments, PgConnectOptions, PgPoolOptions, PgRow};
use sqlx::query::Map;
use sqlx::{ConnectOptions, Connection, PgConnection, PgPool, Postgres, Transaction};

use crate::telemetry;
use limit::Limit;

pub use access::Relabelled;
pub use chunks::{Depth, LiveChunk, NoteProblem};
pub use claim::{
    CLAIMS_LOST_TOGETHER, Claim, ClaimScope, Claimed, FailedBy, Failure, Position, Retry, holder,
};
pub use collections::{CollectionRow, Range};
pub use commit::{ChunkWrite, Committed, NoteWrite};
pub use jobs::RunningJob;
pub use lifecycle::Lifecycle;
pub use listen::listen;
pub use migrations::migrator;
pub use notes::{ChunkText, ImportedNote, Selection};
pub use report::{DeadLetter, NoteCounts, OutboxCounts, OutboxTable};
pub use verify_runs::{BegunVerify, VerifyCursor};
pub use versions::{RegisteredVersion, Version};

/// For a connection of the pool, a new one included.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// For one statement, see [`Limit`].
const STATEMENT_LIMIT: Duration = Duration::from_secs(120);

/// A connection that does not answer for this long when it is given back is in the middle
/// of something that nobody waits for any more.
const RETURN_LIMIT: Duration = Duration::from_secs(5);

/// A cached plan outlives what it was made for: one that was made while a table was empty
/// reads the table from end to end, and goes on to after a bulk load. So Postgres plans
/// every statement anew. [`Store::begin`] is the exception.
const PLANS: [(&str, &str); 1] = [("plan_cache_mode", "force_custom_plan")];

/// ELF's side of a Postgres database.
#[derive(Clone, Debug)]
pub struct Store {
    pool: PgPool,
    statement_limit: Duration,
    /// Connections made so far: behind a new one may be another server.
    connections: Arc<AtomicU64>,
}

/// Why Postgres did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Postgres is away, full or busy; the same request may work later.
    #[error("Postgres is unavailable: {0}")]
    Unavailable(String),
    /// The database is not as this program needs it, or does not let it in.
    #[error("{0}")]
    Schema(String),
    /// So many migrations have not been applied yet. Somebody may be at it.
    #[error(
        "the database schema is older than this elf (migrations to go: {0}): run `elf migrate`"
    )]
    Outdated(usize),
    /// Postgres does not take what a statement was given.
    #[error("Postgres rejected what it was given: {0}")]
    Rejected(String),
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        if let sqlx::Error::PoolTimedOut = error {
            // The driver asks again until then, and does not say what it was told.
            let secs = CONNECT_LIMIT.as_secs();
            return Self::Unavailable(format!(
                "no connection within {secs} seconds: the server is down or out of reach, or has \
                 none to spare"
            ));
        }
        let sqlx::Error::Database(database) = &error else {
            // All that is left is the connection, or a type that is not what it was.
            return Self::Unavailable(error.to_string());
        };
        let message = database.message().to_owned();
        match blame(&database.code().unwrap_or_default()) {
            Fault::Data => Self::Rejected(message),
            Fault::Server => Self::Unavailable(message),
            Fault::Setup => Self::Schema(format!(
                "Postgres refuses: {message}; check storage.postgres.dsn, and that its role may \
                 do what sql/README.md lists"
            )),
        }
    }
}

/// Who has to change for a statement to succeed.
#[derive(Debug, PartialEq)]
enum Fault {
    /// The values in it.
    Data,
    /// The server, and it may do so by itself.
    Server,
    /// Whoever set up database, role and rights.
    Setup,
}

/// Reads an SQLSTATE, see appendix A of the Postgres manual.
fn blame(sqlstate: &str) -> Fault {
    let is_class = |classes: &[&str]| classes.iter().any(|class| sqlstate.starts_with(class));
    // Data exception, integrity constraint, program limit, raised by a trigger.
    if is_class(&["22", "23", "54", "P0"]) {
        return Fault::Data;
    }
    // Connection exception, transaction rollback (deadlock), insufficient resources,
    // operator intervention, system error; lock not available, read-only while
    // failing over, a transaction that we left idle for too long.
    let is_passing = is_class(&["08", "40", "53", "57", "58"])
        || ["55P03", "25006", "25P03"].contains(&sqlstate);
    if is_passing {
        Fault::Server
    } else {
        Fault::Setup
    }
}

impl Store {
    /// Connects, or says why not within a few seconds.
    pub async fn connect(dsn: &str, max_connections: u32) -> Result<Self, StoreError> {
        let options = PgConnectOptions::from_str(dsn)
            .map_err(|e| StoreError::Schema(format!("storage.postgres.dsn: {e}")))?
            .application_name("elf")
            // A slow statement would be logged with all of its text.
            .disable_statement_logging();
        let connections = Arc::new(AtomicU64::new(0));
        let pool = match open_pool(
            options.clone().options(PLANS),
            max_connections,
            &connections,
        )
        .await
        {
            Err(error) if refuses_options(&error) => {
                tracing::warn!(
                    "a connection pooler does not pass plan_cache_mode on; set it for the role, see \
                     docs/operations.md, PgBouncer"
                );
                open_pool(options, max_connections, &connections).await?
            }
            opened => opened?,
        };
        Ok(Self {
            pool,
            statement_limit: STATEMENT_LIMIT,
            connections,
        })
    }

    /// The same with another limit than two minutes for one statement.
    pub fn with_statement_limit(self, statement_limit: Duration) -> Self {
        Self {
            statement_limit,
            ..self
        }
    }

    /// Whether Postgres answers.
    pub async fn ping(&self) -> Result<(), StoreError> {
        let ping = sqlx::query("select 1").execute(&self.pool);
        self.answered(Limit::Statement, ping).await?;
        Ok(())
    }

    /// How many connections were made so far. A failover shows as more of them.
    pub fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    /// The pool, for what needs a connection of its own kind.
    pub fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// A process that is stopped or cut off in a transaction would keep its locks
    /// on notes for as long as that lasts, and an application's delete would wait.
    async fn begin(&self) -> Result<Transaction<'static, Postgres>, StoreError> {
        // What a transaction reads last has to be as it is then, whatever the database's
        // default is: a commit reads its target collections under the lock they are
        // registered under.
        // The checks of foreign keys are statements too, one for each row that is written.
        // Planned anew each time they would cost more than the rows; planned once, and
        // over an empty table, they would read it from end to end. So they are planned
        // once and without sequential scans.
        let begin = "begin isolation level read committed; \
                     set local idle_in_transaction_session_timeout = '5s'; \
                     set local plan_cache_mode = force_generic_plan; \
                     set local enable_seqscan = off";
        Ok(self.pool.begin_with(begin).await?)
    }

    /// Reads one page of many, in the order of an index. Where Postgres knows little of a
    /// table, it takes a page for nearly all of it: then it reads all that is left and sorts
    /// it, again for every page. So it has neither a sort nor what needs one.
    async fn read_page<T: Send + Unpin>(
        &self,
        page: Map<'_, Postgres, impl FnMut(PgRow) -> sqlx::Result<T> + Send, PgArguments>,
    ) -> Result<Vec<T>, StoreError> {
        let begin = "begin isolation level read committed read only; \
                     set local enable_seqscan = off; \
                     set local enable_bitmapscan = off; \
                     set local enable_hashjoin = off; \
                     set local enable_mergejoin = off; \
                     set local enable_sort = off";
        let mut transaction = self.pool.begin_with(begin).await?;
        let rows = page.fetch_all(&mut *transaction).await?;
        transaction.commit().await?;
        Ok(rows)
    }

    /// Counts and times an operation, and ends it when it is not answered in time.
    fn measured<'w, T: Send + 'w>(
        &self,
        operation: &'static str,
        work: impl Future<Output = Result<T, StoreError>> + Send + 'w,
    ) -> BoxFuture<'w, Result<T, StoreError>> {
        self.measured_within(Limit::Statement, operation, work)
    }

    /// The same, within another limit.
    fn measured_within<'w, T: Send + 'w>(
        &self,
        limit: Limit,
        operation: &'static str,
        work: impl Future<Output = Result<T, StoreError>> + Send + 'w,
    ) -> BoxFuture<'w, Result<T, StoreError>> {
        let span = tracing::debug_span!("postgres", otel.name = operation, operation);
        let seconds = histogram!("elf_postgres_operation_seconds", "operation" => operation);
        let done = telemetry::timed(span, seconds, self.answered(limit, work));
        Box::pin(done.inspect_err(move |error| {
            let kind = match error {
                StoreError::Unavailable(_) => "unavailable",
                StoreError::Schema(_) | StoreError::Outdated(_) => "schema",
                StoreError::Rejected(_) => "rejected",
            };
            counter!("elf_postgres_errors_total", "operation" => operation, "kind" => kind)
                .increment(1);
        }))
    }

    /// Waits for an answer as long as `limit`. Boxed, see
    /// [`telemetry::timed`].
    fn answered<'w, T: Send + 'w, E: Into<StoreError> + Send + 'w>(
        &self,
        limit: Limit,
        work: impl Future<Output = Result<T, E>> + Send + 'w,
    ) -> BoxFuture<'w, Result<T, StoreError>> {
        let limit = limit.of(self.statement_limit);
        let work = Box::pin(work);
        Box::pin(async move {
            match tokio::time::timeout(limit, work).await {
                Ok(answer) => answer.map_err(Into::into),
                Err(_) => Err(StoreError::Unavailable(format!(
                    "no answer within {} seconds",
                    limit.as_secs()
                ))),
            }
        })
    }
}

/// Opens a pool that counts its connections in `connections`.
async fn open_pool(
    options: PgConnectOptions,
    max_connections: u32,
    connections: &Arc<AtomicU64>,
) -> Result<PgPool, sqlx::Error> {
    let connections = connections.clone();
    PgPoolOptions::new()
        .max_connections(max_connections)
        .acquire_timeout(CONNECT_LIMIT)
        .after_connect(move |_, _| {
            connections.fetch_add(1, Ordering::Relaxed);
            Box::pin(async { Ok(()) })
        })
        .after_release(|connection, _| Box::pin(is_at_rest(connection)))
        .connect_with(options)
        .await
}

/// A PgBouncer in transaction mode refuses settings that it is not told to ignore.
fn refuses_options(error: &sqlx::Error) -> bool {
    let message = error.as_database_error().map(|e| e.message());
    message.is_some_and(|message| message.contains("unsupported startup parameter in options"))
}

/// Whether a connection that is given back can be used again. The pool asks the same
/// again afterwards, but without patience: one whose statement was given up would be
/// waited for, and missed, for ever.
async fn is_at_rest(connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
    let ping = tokio::time::timeout(RETURN_LIMIT, connection.ping()).await;
    Ok(matches!(ping, Ok(Ok(()))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_values_are_a_notes_fault() {
        assert_eq!(blame("23514"), Fault::Data, "a check of the application's");
        assert_eq!(
            blame("P0001"),
            Fault::Data,
            "an exception of the application's"
        );
        assert_eq!(blame("42501"), Fault::Setup, "no right to the table");
        assert_eq!(blame("42P01"), Fault::Setup, "no such table");
        assert_eq!(blame("28P01"), Fault::Setup, "a wrong password");
        assert_eq!(
            blame("55P03"),
            Fault::Server,
            "a lock that was not to be had"
        );
        assert_eq!(blame("40P01"), Fault::Server, "a deadlock");
    }
}
