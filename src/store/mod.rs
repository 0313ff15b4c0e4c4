//! Postgres, the source of truth. Every statement of more than a line is a file under
//! `sql/queries/`, and the compiler checks it against the real schema.

mod access;
mod api_keys;
mod canary;
mod chunks;
mod claim;
mod collections;
mod commit;
mod connect;
mod error;
mod failure;
mod fields;
mod home;
mod import;
mod jobs;
mod lifecycle;
mod limit;
mod listed;
mod listen;
mod locks;
mod migrations;
mod notes;
mod placement;
mod pool;
mod reachable;
mod report;
mod rights;
mod schema;
mod search;
mod setup_lock;
mod shown;
mod sources;
mod tables;
mod traces;
mod transaction;
mod trust;
mod unreadable;
mod upkeep;
mod vector_extension;
mod vector_type;
mod verify_runs;
mod versions;
mod write;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures::TryFutureExt;
use futures::future::BoxFuture;
use metrics::{counter, histogram};
use sqlx::Postgres;
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Map;

use crate::telemetry;
use limit::Limit;
use locks::Locks;
use transaction::Transaction;

pub use access::{OldChunk, TakenOver};
pub use api_keys::{ApiKey, ListedKey, Reach, SecretHash};
pub use canary::CanaryRow;
pub use chunks::{Depth, LiveChunk, NoteProblem};
pub use claim::{
    Blame, Claim, ClaimScope, Claimed, Due, LOST_CLAIMS_UNTIL_ALONE, Position, holder,
};
pub use collections::{CollectionRow, HeldServed, Range};
pub use commit::{ChunkWrite, Committed, NoteWrite, Target};
pub use connect::{LEAST_CONNECTIONS, pool_sizes};
pub use error::StoreError;
pub use failure::{FailedBy, Failure, Retry};
pub use home::{Database, IndexHome};
pub use import::{Field, ImportedNote, KeyOwner, Origin, Outcome, Written};
pub use jobs::{HeldJob, JobLease, RunningJob};
pub use lifecycle::Lifecycle;
pub use listed::Listed;
pub use locks::LockWait;
pub use notes::{LiveText, LoadedNotes, Selection};
pub use pool::{Pool, PooledConnection};
pub use reachable::{
    AddedNote, Duplicate, NoteChange, NotePart, PutNotes, ReachableChunk, ReachableNote,
};
pub use report::{DeadLetter, NoteCounts, OutboxCounts, OutboxTable};
pub use schema::migrator;
pub use search::{ChunkText, FoundChunk, FoundNote, PostgresQuery, Scan, Surroundings};
pub use shown::Shown;
pub use sources::{
    ComparedPage, InstalledSource, LeftOut, SourceColumn, SourceCounts, SourceDrift, SourceFacts,
    SourceSide,
};
pub use traces::{Hit, RecordedTrace, SearchTrace, TraceItem, TracedChunk};
pub use upkeep::{Expired, ExpiryPosition, OutboxPosition};
pub use verify_runs::{BegunVerify, VerifyCursor};
pub use versions::{RegisteredVersion, Version};

/// How long an operation waits for a connection of the pool, a new one included.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// How long one statement may take, see [`Limit`].
const STATEMENT_LIMIT: Duration = Duration::from_secs(120);

/// How long Postgres may take to end a statement that was cancelled.
const RETURN_LIMIT: Duration = Duration::from_secs(5);

/// Before ELF tries again to delete rows that an application had locked.
const LOCKED_PAUSE: Duration = Duration::from_millis(200);

/// Settings of transactions: see [`Store::begin`].
const GENERIC_PLANS: &str = "plan_cache_mode = force_generic_plan";
const JIT_OFF: &str = "jit = off";

/// ELF's side of a Postgres database.
#[derive(Clone, Debug)]
pub struct Store {
    pool: Pool,
    /// For statements whose plan Postgres may keep.
    keyed: Pool,
    /// For a look at the locks while the other connections wait, and to cancel what they do.
    control: Pool,
    locks: Arc<Locks>,
    /// Whether the connections of `keyed` have its settings, as far as is known. A connection pooler
    /// may refuse or drop them.
    has_settings: Arc<AtomicBool>,
    statement_limit: Duration,
    /// Connections made so far. After a failover, a new one may lead to another server.
    connections: Arc<AtomicU64>,
}

impl Store {
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
    pub fn pool(&self) -> &Pool {
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
        self.begin_within(
            Limit::Batch,
            &[GENERIC_PLANS, JIT_OFF, "enable_seqscan = off"],
        )
        .await
    }

    /// Begins a transaction with these settings, of statements that may take as long as `limit`.
    ///
    /// Each statement has to see what is committed when it starts, whatever the default of the database
    /// is: a commit reads its target collections under the lock under which a rebuild registers them.
    async fn begin_within(
        &self,
        limit: Limit,
        settings: &[&str],
    ) -> Result<Transaction, StoreError> {
        // A connection pooler may keep the time limits of the session from Postgres.
        let mut begin = format!(
            "begin isolation level read committed; \
             set local idle_in_transaction_session_timeout = '5s'; \
             set local statement_timeout = {}; set local lock_timeout = {}",
            limit.of(self.statement_limit).as_millis(),
            limit::lock(self.statement_limit).as_millis()
        );
        for setting in settings {
            begin.push_str("; set local ");
            begin.push_str(setting);
        }
        Ok(Transaction::begin(&self.pool, begin).await?)
    }

    /// Begins a transaction for one statement that may take as long as `limit`.
    async fn begin_long(&self, limit: Limit) -> Result<Transaction, StoreError> {
        self.begin_within(limit, &[]).await
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
        let settings = [
            GENERIC_PLANS,
            JIT_OFF,
            "enable_seqscan = off",
            "enable_bitmapscan = off",
            "enable_hashjoin = off",
            "enable_mergejoin = off",
            "enable_sort = off",
        ];
        self.begin_within(Limit::Batch, &settings).await
    }

    /// Counts rows of whole tables. Without statistics Postgres may expect few rows, and read one table
    /// for each row of another. So nested loops are off.
    async fn count<T: Send + Unpin>(
        &self,
        count: Map<'_, Postgres, impl FnMut(PgRow) -> sqlx::Result<T> + Send, PgArguments>,
    ) -> Result<T, StoreError> {
        let settings = ["enable_nestloop = off"];
        self.read_one(Limit::EveryNote, &settings, count).await
    }

    /// Reads one row with a statement that may take as long as `limit`.
    async fn read_one<T: Send + Unpin>(
        &self,
        limit: Limit,
        settings: &[&str],
        row: Map<'_, Postgres, impl FnMut(PgRow) -> sqlx::Result<T> + Send, PgArguments>,
    ) -> Result<T, StoreError> {
        let mut transaction = self.begin_within(limit, settings).await?;
        let row = row.fetch_one(&mut *transaction).await?;
        transaction.commit().await?;
        Ok(row)
    }

    /// Counts and times an operation, which times out after [`Limit::Statement`].
    fn measured<'w, T: Send + 'w>(
        &'w self,
        operation: &'static str,
        work: impl Future<Output = Result<T, StoreError>> + Send + 'w,
    ) -> BoxFuture<'w, Result<T, StoreError>> {
        self.measured_within(Limit::Statement, operation, work)
    }

    /// [`Self::measured`] of one statement.
    fn asked<'w, T: Send + 'w>(
        &'w self,
        operation: &'static str,
        statement: impl Future<Output = sqlx::Result<T>> + Send + 'w,
    ) -> BoxFuture<'w, Result<T, StoreError>> {
        self.measured(operation, statement.err_into())
    }

    /// [`Self::measured`] with another limit.
    fn measured_within<'w, T: Send + 'w>(
        &'w self,
        limit: Limit,
        operation: &'static str,
        work: impl Future<Output = Result<T, StoreError>> + Send + 'w,
    ) -> BoxFuture<'w, Result<T, StoreError>> {
        let span = tracing::debug_span!("postgres", otel.name = operation, operation);
        let seconds = histogram!("elf_postgres_operation_seconds", "operation" => operation);
        let done = telemetry::timed(span, seconds, self.answered(limit, work));
        Box::pin(done.inspect_err(move |error| {
            counter!("elf_postgres_errors_total", "operation" => operation, "kind" => error.kind())
                .increment(1);
        }))
    }

    /// Waits for an answer as long as `limit`. Boxed, see [`telemetry::timed`].
    fn answered<'w, T: Send + 'w, E: Into<StoreError> + Send + 'w>(
        &'w self,
        limit: Limit,
        work: impl Future<Output = Result<T, E>> + Send + 'w,
    ) -> BoxFuture<'w, Result<T, StoreError>> {
        let (patience, limit) = (
            limit.with_answer(self.statement_limit),
            limit.of(self.statement_limit),
        );
        let work = Box::pin(work);
        Box::pin(async move {
            let answered = tokio::time::timeout(patience, work);
            let error: StoreError = match self.watching_locks(answered).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(error)) => error.into(),
                Err(_) => {
                    StoreError::Unavailable(format!("no answer within {} seconds", limit.as_secs()))
                }
            };
            if let StoreError::Stale(_) = error {
                self.pool.renew();
                self.keyed.renew();
            }
            Err(match error {
                StoreError::Locked(reason) => StoreError::Locked(self.locks.explain(reason)),
                error => error,
            })
        })
    }
}
