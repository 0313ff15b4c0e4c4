//! Writes that someone waits for: clients of the HTTP API, the admin page, and commands. They end with one of
//! three answers: done, not done, or [`StoreError::Unconfirmed`].

use std::time::Duration;

use futures::future::BoxFuture;
use sqlx::Postgres;
use sqlx::postgres::{PgArguments, PgDatabaseError, PgSeverity};
use sqlx::query::Query;

use super::transaction::Transaction;
use super::{Limit, Pool, Store, StoreError};

/// Begins a write over HTTP. It waits only a moment for a row that the application holds.
pub(super) const WRITE: &str =
    "begin; set local lock_timeout = '3s'; set local statement_timeout = '10s'";

/// The same of several notes. While it has locked one, it waits for no other: an application that changes both,
/// in whatever order, would be the victim of a deadlock. Postgres looks for one after a second.
pub(super) const WRITE_SEVERAL: &str =
    "begin; set local lock_timeout = '10ms'; set local statement_timeout = '10s'";

/// For how long such a write is tried again, holding nothing in between.
pub(super) const SEVERAL_LIMIT: Duration = Duration::from_secs(3);

/// Begins the write of a command, which may be one of all notes: see [`Limit::Upkeep`].
pub(super) const COMMAND: &str = "begin; set local statement_timeout = '30min'";

/// How long the statements of a write over HTTP may take, a new connection included. Longer than Postgres lets
/// them.
const WRITE_LIMIT: Duration = Duration::from_secs(16);

/// How long its commit may take: a synchronous standby may never acknowledge it.
const COMMIT_LIMIT: Duration = Duration::from_secs(10);

impl Store {
    /// Does and commits a write over HTTP. `work` begins the transaction with [`WRITE`].
    pub(super) fn write<'w, T: Send + 'w>(
        &'w self,
        operation: &'static str,
        work: impl Future<Output = Result<(Transaction, T), StoreError>> + Send + 'w,
    ) -> BoxFuture<'w, Result<T, StoreError>> {
        self.measured(operation, committed(WRITE_LIMIT, COMMIT_LIMIT, work))
    }

    /// Does and commits the write of a command. `work` begins the transaction with [`COMMAND`].
    pub(super) fn command<'w, T: Send + 'w>(
        &'w self,
        operation: &'static str,
        work: impl Future<Output = Result<(Transaction, T), StoreError>> + Send + 'w,
    ) -> BoxFuture<'w, Result<T, StoreError>> {
        let limit = |limit: Limit| limit.of(self.statement_limit);
        let work = committed(limit(Limit::Upkeep), limit(Limit::Statement), work);
        self.measured_within(Limit::EveryNote, operation, work)
    }
}

/// Begins a transaction with `begin`, executes `statement`, and returns how many rows it affected.
pub(super) async fn affected(
    pool: &Pool,
    begin: &'static str,
    statement: Query<'_, Postgres, PgArguments>,
) -> Result<(Transaction, u64), StoreError> {
    let mut tx = Transaction::begin(pool, begin).await?;
    let done = statement.execute(&mut *tx).await?;
    Ok((tx, done.rows_affected()))
}

/// Commits what `work` has written. A transaction that is given up before its commit is rolled back.
async fn committed<T>(
    write: Duration,
    commit: Duration,
    work: impl Future<Output = Result<(Transaction, T), StoreError>>,
) -> Result<T, StoreError> {
    let late = |limit: Duration| format!("no answer within {} seconds", limit.as_secs());
    let (transaction, done) = match tokio::time::timeout(write, work).await {
        Ok(written) => written?,
        Err(_) => return Err(StoreError::Unavailable(late(write))),
    };
    match tokio::time::timeout(commit, transaction.commit_notifying()).await {
        Ok(committed) => committed.map(|()| done).map_err(not_committed),
        Err(_) => Err(StoreError::Unconfirmed(late(commit))),
    }
}

/// What the error of a commit says. Postgres has rolled back if its error leaves the session alive. A session that
/// is terminated while it waits for a standby has committed.
fn not_committed(error: sqlx::Error) -> StoreError {
    let is_refused = error.as_database_error().is_some_and(|error| {
        let severity = error.try_downcast_ref().map(PgDatabaseError::severity);
        severity == Some(PgSeverity::Error) && is_refusal(&error.code().unwrap_or_default())
    });
    match is_refused {
        true => error.into(),
        false => StoreError::Unconfirmed(error.to_string()),
    }
}

/// Whether this SQLSTATE of a commit says that nothing was written. Connection, operator intervention and system
/// errors may be those of a pooler that lost its server; 40003 is "statement completion unknown".
fn is_refusal(sqlstate: &str) -> bool {
    sqlstate != "40003"
        && !["08", "57", "58"]
            .iter()
            .any(|class| sqlstate.starts_with(class))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_without_a_clear_refusal_may_have_been_done() {
        for refused in [
            "23505", "23514", "40001", "40P01", "53100", "55P03", "P0001",
        ] {
            assert!(is_refusal(refused), "{refused}");
        }
        for unknown in [
            "08006", "08007", "08P01", "40003", "57P01", "57P02", "58000",
        ] {
            assert!(!is_refusal(unknown), "{unknown}");
        }
        let broken = sqlx::Error::Io(std::io::ErrorKind::ConnectionReset.into());
        assert!(matches!(not_committed(broken), StoreError::Unconfirmed(_)));
    }
}
