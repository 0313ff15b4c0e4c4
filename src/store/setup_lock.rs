//! Locks that let one process of ELF set things up at a time, and who holds up a lock.
//!
//! They are locks on ELF's own tables: any role of the database could take an advisory lock, and
//! hold ELF up for as long as it likes.

use std::convert::Infallible;
use std::time::Duration;

use sqlx::{AssertSqlSafe, PgConnection};

use super::migrations::{is_locked_out, pause};
use super::pool::PooledConnection;
use super::schema::MIGRATIONS_TABLE;
use super::{Store, StoreError};

/// How often to look which sessions hold up a lock. Shorter than any `lock_timeout`, so that it happens during the wait.
const LOOK_EVERY: Duration = Duration::from_millis(150);

/// Locks out other processes that set up the index of this database, until the transaction ends.
pub(super) const LOCK_SETUP: &str = "lock table elf_schema in share update exclusive mode";

/// Begins a transaction of a migration: the timeouts that a role or a database may have were set with an
/// application in mind. In a transaction, because a connection pooler would give the settings of a session
/// to another client. `transaction_timeout` came with Postgres 17.
pub(super) const WITHOUT_TIMEOUTS: &str = "
set transaction isolation level read committed;
set local statement_timeout = 0;
set local idle_in_transaction_session_timeout = '5s';
select set_config(name, '0', true) from pg_settings where name = 'transaction_timeout';
";

/// The sessions that hold the lock of [`Store::lock_migrations`].
const MIGRATES: &str = "pid in (
    select pid from pg_locks
     where relation = to_regclass($1) and granted and mode = 'ShareUpdateExclusiveLock'
       and database = (select oid from pg_database where datname = current_database()))";

/// Held until it is dropped.
pub(super) struct MigrationLock {
    /// In a transaction of its own: migrations commit, and one builds an index outside of any. The transaction
    /// has read nothing, so a concurrent build of an index does not wait for it.
    connection: PooledConnection,
}

impl MigrationLock {
    pub(super) async fn release(mut self) -> Result<(), StoreError> {
        sqlx::raw_sql("rollback")
            .execute(&mut *self.connection)
            .await?;
        Ok(())
    }
}

impl Store {
    /// Lets one process migrate at a time. It waits as long as the other one takes, and logs which that is.
    /// The table of migrations exists.
    ///
    /// It polls instead of waiting in Postgres: `create index concurrently` waits for every older statement. If
    /// one of these statements waited for this lock, the two would wait for each other.
    pub(super) async fn lock_migrations(&self) -> Result<MigrationLock, StoreError> {
        let mut connection = self.keyed.acquire().await?;
        // Whatever happens, the lock ends with the session.
        connection.close_on_drop();
        let lock = format!(
            "begin; {WITHOUT_TIMEOUTS}
             set local idle_in_transaction_session_timeout = 0;
             set tcp_keepalives_idle = 60; set tcp_keepalives_interval = 10; set tcp_keepalives_count = 3;
             lock table {MIGRATIONS_TABLE} in share update exclusive mode nowait"
        );
        let mut known = None;
        for tries in 1.. {
            match sqlx::raw_sql(AssertSqlSafe(lock.clone()))
                .execute(&mut *connection)
                .await
            {
                Ok(_) => break,
                Err(error) if is_locked_out(&error) => {}
                Err(error) => return Err(error.into()),
            }
            sqlx::raw_sql("rollback").execute(&mut *connection).await?;
            // An error is harmless: only the log message depends on the answer.
            let found = self
                .sessions(MIGRATES, MIGRATIONS_TABLE)
                .await
                .unwrap_or_default();
            if found.is_some() && found != known {
                let by = found.as_deref().unwrap_or_default();
                tracing::warn!(
                    by,
                    "waiting for another process that migrates this database; if it hangs, end it with \
                     pg_terminate_backend"
                );
                known = found;
            }
            pause(tries).await;
        }
        Ok(MigrationLock { connection })
    }

    /// Executes [`LOCK_SETUP`].
    pub(super) async fn lock_setup(
        &self,
        transaction: &mut PgConnection,
    ) -> Result<(), StoreError> {
        let pid = pid(transaction).await?;
        let lock = sqlx::raw_sql(LOCK_SETUP);
        let (waiting, mut told) = ("waiting for another process that sets up the index", None);
        tokio::select! {
            locked = lock.execute(transaction) => locked?,
            never = self.log_blockers(pid, waiting, &mut told) => match never {},
        };
        Ok(())
    }

    /// Logs `waiting` with the sessions that block the session `pid`, whenever these are others than `known`.
    pub(super) async fn log_blockers(
        &self,
        pid: i32,
        waiting: &str,
        known: &mut Option<String>,
    ) -> Infallible {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            // An error is harmless: only the log message depends on the answer.
            let found = self.blockers(pid).await.unwrap_or_default();
            if found.is_some() && found != *known {
                let by = found.as_deref().unwrap_or_default();
                tracing::warn!(by, "{waiting}");
                *known = found;
            }
        }
    }

    async fn blockers(&self, pid: i32) -> Result<Option<String>, sqlx::Error> {
        self.sessions(
            "pid = any (pg_blocking_pids($1::text::int))",
            &pid.to_string(),
        )
        .await
    }

    /// Which sessions these are. Postgres hides the state of other roles' sessions from a role without
    /// pg_read_all_stats; then the columns are null.
    async fn sessions(&self, which: &'static str, of: &str) -> Result<Option<String>, sqlx::Error> {
        let sessions = format!(
            "select string_agg(format('process %s (%s, %s since %s UTC)', pid,
                                      concat_ws(' ', usename, nullif(application_name, '')),
                                      coalesce(state, backend_type),
                                      date_trunc('second', coalesce(xact_start, backend_start))::timestamp),
                               ', ' order by pid)
               from pg_stat_activity where {which}"
        );
        sqlx::query_scalar(AssertSqlSafe(sessions))
            .bind(of)
            .fetch_one(&self.control)
            .await
    }
}

/// The process of Postgres that serves a connection. Behind a pooler it is that only within a transaction.
pub(super) async fn pid(connection: &mut PgConnection) -> Result<i32, sqlx::Error> {
    sqlx::query_scalar("select pg_backend_pid()")
        .fetch_one(connection)
        .await
}
