//! Postgres, the source of truth. Every statement of more than a line is a file under
//! `sql/queries/`, and the compiler checks it against the real schema.

mod access;
mod api_keys;
mod chunks;
mod claim;
mod collections;
mod commit;
mod failure;
mod home;
mod jobs;
mod lifecycle;
mod limit;
mod listen;
mod migrations;
mod notes;
mod pool;
mod reachable;
mod report;
mod rights;
mod schema;
mod search;
mod traces;
mod transaction;
mod upkeep;
mod vector_type;
mod verify_runs;
mod versions;
mod write;

use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures::TryFutureExt;
use futures::future::BoxFuture;
use metrics::{counter, histogram};
use sqlx::postgres::{PgArguments, PgConnectOptions, PgDatabaseError, PgRow};
use sqlx::query::Map;
use sqlx::{ConnectOptions, PgConnection, PgPool, Postgres};

use crate::error_class::ErrorClass;
use crate::telemetry;
use limit::Limit;
use pool::pool_options;
use transaction::Transaction;

pub use access::{OldChunk, Relabelled};
pub use api_keys::{ApiKey, ListedKey, Reach, SecretHash};
pub use chunks::{Depth, LiveChunk, NoteProblem};
pub use claim::{Claim, ClaimScope, Claimed, Due, LOST_CLAIMS_UNTIL_ALONE, Position, holder};
pub use collections::{CollectionRow, HeldServed, Range};
pub use commit::{ChunkWrite, Committed, NoteWrite, Target};
pub use failure::{FailedBy, Failure, Retry};
pub use home::{Database, IndexHome};
pub use jobs::{HeldJob, JobLease, RunningJob};
pub use lifecycle::Lifecycle;
pub use listen::listen;
pub use notes::{ImportedNote, Selection};
pub use reachable::{AddedNote, Duplicate, NoteChange, NotePart, ReachableChunk, ReachableNote};
pub use report::{DeadLetter, NoteCounts, OutboxCounts, OutboxTable};
pub use schema::migrator;
pub use search::{ChunkText, FoundChunk, PostgresQuery, Scan, Surroundings};
pub use traces::{Hit, RecordedTrace, SearchTrace, TraceItem, TracedChunk};
pub use upkeep::{Expired, ExpiryPosition, OutboxPosition};
pub use verify_runs::{BegunVerify, VerifyCursor};
pub use versions::{RegisteredVersion, Version};

/// How long an operation waits for a connection of the pool, a new one included.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// How long one statement may take, see [`Limit`].
const STATEMENT_LIMIT: Duration = Duration::from_secs(120);

/// How long a connection may take to answer when it returns to the pool. One that needs longer
/// still executes a statement that timed out.
const RETURN_LIMIT: Duration = Duration::from_secs(5);

/// Before ELF tries again to delete rows that an application had locked.
const LOCKED_PAUSE: Duration = Duration::from_millis(200);

/// A plan that Postgres caches while a table is empty is a sequential scan, and Postgres would
/// use it after a bulk load too. So it plans every statement anew. [`Store::begin`] and
/// [`Store::page`] are the exceptions.
const PLANS: [(&str, &str); 1] = [("plan_cache_mode", "force_custom_plan")];

/// The statements of a search and of a batch look up rows by key, whatever the statistics say. To
/// plan one anew takes up to several times as long as to execute it. Postgres may plan them while the
/// tables are empty, where a sequential scan, or a sort of all rows, costs the same as to walk an index.
/// So it takes those only if there is no other way. See [`Store::begin`] for `jit`.
const KEYED_PLANS: [(&str, &str); 4] = [
    ("plan_cache_mode", "force_generic_plan"),
    ("jit", "off"),
    ("enable_seqscan", "off"),
    ("enable_sort", "off"),
];

/// What begins a transaction with these settings.
///
/// Each statement has to see what is committed when it starts, whatever the default of the database
/// is: a commit reads its target collections under the lock under which a rebuild registers them.
macro_rules! begin {
    ($($setting:literal),+) => {
        concat!(
            "begin isolation level read committed; \
             set local idle_in_transaction_session_timeout = '5s'",
            $("; set local ", $setting),+
        )
    };
}

/// The unique index on the keys of notes.
const KEY_INDEX: &str = "memory_notes_key_idx";

/// ELF's side of a Postgres database.
#[derive(Clone, Debug)]
pub struct Store {
    pool: PgPool,
    /// For statements whose plan Postgres may keep.
    keyed: PgPool,
    /// Whether the connections of `keyed` have its settings, as far as is known. A connection pooler
    /// may refuse or drop them.
    has_settings: Arc<AtomicBool>,
    statement_limit: Duration,
    /// Connections made so far. After a failover, a new one may lead to another server.
    connections: Arc<AtomicU64>,
}

/// Why Postgres did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Postgres is unreachable, full or busy. The same request may succeed later.
    #[error("Postgres is unavailable: {0}")]
    Unavailable(String),
    /// The schema does not fit this program, or Postgres denies it access.
    #[error("{0}")]
    Schema(String),
    /// The number of migrations that are not applied yet. Another process may be applying them.
    #[error(
        "the database schema is older than this elf (migrations to apply: {0}): run `elf migrate`"
    )]
    Outdated(usize),
    /// The columns of vectors are of another type than the configuration says. Another process may be
    /// changing them.
    #[error(
        "the vectors in Postgres are of the type {found}, and storage.postgres.vector_type is \
         {configured:?}: run `elf migrate`, which rewrites their tables, or change the setting"
    )]
    OtherVectorType {
        /// What they are of.
        found: String,
        /// What they should be of.
        configured: &'static str,
    },
    /// Postgres rejected a value in a statement.
    #[error("Postgres rejected a value: {0}")]
    Rejected(String),
    /// Another note of the same tenant, project, agent and scope has this key.
    #[error("another note has this key: {0}")]
    KeyTaken(String),
    /// The commit was sent, and its answer did not come.
    #[error(
        "Postgres did not confirm the commit: {0}. The write may have been done, or be done later"
    )]
    Unconfirmed(String),
    /// The job's lease expired, for example during an outage of Postgres, and another process
    /// took it.
    #[error("job lease lost to another process")]
    JobLost,
}

impl StoreError {
    /// What has to change before the same work can succeed.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Unavailable(_) | Self::Unconfirmed(_) => ErrorClass::Store,
            Self::Schema(_) | Self::Outdated(_) | Self::OtherVectorType { .. } => {
                ErrorClass::Configuration
            }
            Self::Rejected(_) | Self::KeyTaken(_) => ErrorClass::Item,
            Self::JobLost => ErrorClass::Precondition,
        }
    }
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        if let sqlx::Error::PoolTimedOut = error {
            // The driver retries until its timeout, and drops the reason of each failure.
            let secs = CONNECT_LIMIT.as_secs();
            return Self::Unavailable(format!(
                "no connection within {secs} seconds: the server is down or unreachable, or has \
                 no free connection"
            ));
        }
        let sqlx::Error::Database(database) = &error else {
            // The other kinds are a broken connection, or a column whose type has changed.
            return Self::Unavailable(error.to_string());
        };
        let message = database.message().to_owned();
        if database.constraint() == Some(KEY_INDEX) {
            let detail = database.try_downcast_ref::<PgDatabaseError>();
            let detail = detail.and_then(PgDatabaseError::detail);
            return Self::KeyTaken(detail.unwrap_or(&message).to_owned());
        }
        match class_of(&database.code().unwrap_or_default()) {
            ErrorClass::Item => Self::Rejected(message),
            ErrorClass::Store => Self::Unavailable(message),
            _ => Self::Schema(format!(
                "Postgres refuses: {message}; check storage.postgres.dsn, and that its role has \
                 the rights in sql/README.md"
            )),
        }
    }
}

/// Classifies an SQLSTATE, see appendix A of the Postgres manual.
fn class_of(sqlstate: &str) -> ErrorClass {
    let is_class = |classes: &[&str]| classes.iter().any(|class| sqlstate.starts_with(class));
    // Data exception, integrity constraint, program limit, exception of a trigger.
    if is_class(&["22", "23", "54", "P0"]) {
        return ErrorClass::Item;
    }
    // Connection exception, transaction rollback (deadlock), insufficient resources,
    // operator intervention, system error; lock not available, read-only during a
    // failover, idle-in-transaction timeout.
    let is_passing = is_class(&["08", "40", "53", "57", "58"])
        || ["55P03", "25006", "25P03"].contains(&sqlstate);
    if is_passing {
        ErrorClass::Store
    } else {
        ErrorClass::Configuration
    }
}

impl Store {
    /// Connects. Fails after a few seconds if Postgres is unavailable.
    pub async fn connect(dsn: &str, max_connections: u32) -> Result<Self, StoreError> {
        let options = PgConnectOptions::from_str(dsn)
            .map_err(|e| StoreError::Schema(format!("storage.postgres.dsn: {e}")))?
            .application_name("elf")
            // sqlx would log the full text of a slow statement.
            .disable_statement_logging();
        let connections = Arc::new(AtomicU64::new(0));
        let pool = || pool_options(max_connections, &connections);
        // Both at once: a connection pooler may accept the settings of one and refuse those of the other.
        let opened = tokio::try_join!(
            Box::pin(pool().connect_with(options.clone().options(PLANS))),
            Box::pin(pool().connect_with(options.clone().options(KEYED_PLANS))),
        );
        let ((pool, keyed), has_settings) = match opened {
            Err(error) if refuses_options(&error) => {
                tracing::warn!(
                    "connection pooler does not pass on plan_cache_mode, set it for the role: \
                     docs/operations.md, PgBouncer"
                );
                let pool = pool().connect_with(options).await?;
                ((pool.clone(), pool), false)
            }
            opened => (opened?, true),
        };
        Ok(Self {
            pool,
            keyed,
            has_settings: Arc::new(AtomicBool::new(has_settings)),
            statement_limit: STATEMENT_LIMIT,
            connections,
        })
    }

    /// The same database, with `statement_limit` for one statement instead of two minutes.
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

    /// How many connections were made so far. The number rises after a failover, because every
    /// connection is made again.
    pub fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    /// The pool, for callers that need a connection with their own settings.
    pub fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// Begins a transaction. Postgres ends it when it is idle for five seconds: a process that
    /// hangs or loses its network would keep its locks, and an application's delete would wait
    /// for them.
    async fn begin(&self) -> Result<Transaction, StoreError> {
        // Postgres checks foreign keys with one statement for each row. Planning each of them
        // anew costs more than the rows, and a plan made over an empty table is a sequential
        // scan. So Postgres plans them once and without sequential scans.
        // Up to version 17, a plan with a scan that is off counts as a dear one, and Postgres would
        // compile it, which takes longer than to execute it.
        let begin = begin!(
            "plan_cache_mode = force_generic_plan",
            "jit = off",
            "enable_seqscan = off"
        );
        Ok(Transaction::begin(&self.pool, begin).await?)
    }

    /// Reads or changes one page of many, in the order of an index. Without statistics Postgres
    /// assumes that a page is nearly the whole table. It would then read and sort all remaining rows
    /// for every page. So sorts, and plans that need one, are off.
    async fn page<T: Send + Unpin>(
        &self,
        page: Map<'_, Postgres, impl FnMut(PgRow) -> sqlx::Result<T> + Send, PgArguments>,
    ) -> Result<Vec<T>, StoreError> {
        let mut transaction = self.begin_page().await?;
        let rows = page.fetch_all(&mut *transaction).await?;
        transaction.commit().await?;
        Ok(rows)
    }

    /// Begins the transaction of [`Self::page`].
    async fn begin_page(&self) -> Result<Transaction, StoreError> {
        // See `begin` for the first three.
        let begin = begin!(
            "plan_cache_mode = force_generic_plan",
            "jit = off",
            "enable_seqscan = off",
            "enable_bitmapscan = off",
            "enable_hashjoin = off",
            "enable_mergejoin = off",
            "enable_sort = off"
        );
        Ok(Transaction::begin(&self.pool, begin).await?)
    }

    /// Counts rows of whole tables. Without statistics Postgres may expect few rows, and read one table
    /// for each row of another. So nested loops are off.
    async fn count<T: Send + Unpin>(
        &self,
        count: Map<'_, Postgres, impl FnMut(PgRow) -> sqlx::Result<T> + Send, PgArguments>,
    ) -> Result<T, StoreError> {
        let begin = begin!("enable_nestloop = off");
        let mut transaction = Transaction::begin(&self.pool, begin).await?;
        let counted = count.fetch_one(&mut *transaction).await?;
        transaction.commit().await?;
        Ok(counted)
    }

    /// Counts and times an operation, which times out after [`Limit::Statement`].
    fn measured<'w, T: Send + 'w>(
        &self,
        operation: &'static str,
        work: impl Future<Output = Result<T, StoreError>> + Send + 'w,
    ) -> BoxFuture<'w, Result<T, StoreError>> {
        self.measured_within(Limit::Statement, operation, work)
    }

    /// [`Self::measured`] with another limit.
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
                StoreError::Unavailable(_) | StoreError::Unconfirmed(_) => "unavailable",
                StoreError::Schema(_)
                | StoreError::Outdated(_)
                | StoreError::OtherVectorType { .. } => "schema",
                // No step of the job is measured.
                StoreError::Rejected(_) | StoreError::KeyTaken(_) | StoreError::JobLost => {
                    "rejected"
                }
            };
            counter!("elf_postgres_errors_total", "operation" => operation, "kind" => kind)
                .increment(1);
        }))
    }

    /// Waits for an answer as long as `limit`. Boxed, see [`telemetry::timed`].
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

/// Whether the error is that of a PgBouncer, which refuses startup settings that it is not
/// configured to ignore.
fn refuses_options(error: &sqlx::Error) -> bool {
    let message = error.as_database_error().map(|e| e.message());
    message.is_some_and(|message| message.contains("unsupported startup parameter in options"))
}

/// Locks out other processes that set up the index of this database, until the transaction
/// ends.
async fn lock_setup(conn: &mut PgConnection) -> Result<(), StoreError> {
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
    fn only_values_are_a_notes_fault() {
        assert_eq!(
            class_of("23514"),
            ErrorClass::Item,
            "a check of the application"
        );
        assert_eq!(
            class_of("P0001"),
            ErrorClass::Item,
            "an exception of a trigger of the application"
        );
        assert_eq!(
            class_of("42501"),
            ErrorClass::Configuration,
            "no right to the table"
        );
        assert_eq!(
            class_of("42P01"),
            ErrorClass::Configuration,
            "no such table"
        );
        assert_eq!(
            class_of("28P01"),
            ErrorClass::Configuration,
            "a wrong password"
        );
        assert_eq!(
            class_of("55P03"),
            ErrorClass::Store,
            "a lock that was not available"
        );
        assert_eq!(class_of("40P01"), ErrorClass::Store, "a deadlock");
    }
}
