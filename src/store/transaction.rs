//! A transaction that leaves its connection in order, wherever its future is dropped.

use std::ops::{Deref, DerefMut};

use sqlx::{AssertSqlSafe, PgConnection};

use super::pool::{Pool, PooledConnection};

/// Dropped without a commit, it is rolled back, also while it begins.
pub(super) struct Transaction(PooledConnection);

impl Transaction {
    /// Begins one. `begin` may set things as well, in the same message.
    pub(super) async fn begin(pool: &Pool, begin: impl Into<String>) -> Result<Self, sqlx::Error> {
        let mut connection = pool.acquire().await?;
        connection.set_in_transaction(true);
        let mut transaction = Self(connection);
        sqlx::raw_sql(AssertSqlSafe(begin.into()))
            .execute(&mut *transaction)
            .await?;
        Ok(transaction)
    }

    pub(super) async fn commit(self) -> Result<(), sqlx::Error> {
        self.end("commit").await
    }

    /// Commits what may notify. Postgres lets one session at a time, in whatever database, commit with a NOTIFY: that
    /// may take longer than a write waits for a row. It ends before Postgres looks for a deadlock.
    pub(super) async fn commit_notifying(self) -> Result<(), sqlx::Error> {
        self.end("set local lock_timeout = '900ms'; commit").await
    }

    /// As without, but the next statement of this task finds the connection free.
    pub(super) async fn rollback(self) -> Result<(), sqlx::Error> {
        self.end("rollback").await
    }

    async fn end(mut self, statement: &'static str) -> Result<(), sqlx::Error> {
        sqlx::raw_sql(statement).execute(&mut *self).await?;
        self.0.set_in_transaction(false);
        Ok(())
    }
}

impl Deref for Transaction {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.0
    }
}

impl DerefMut for Transaction {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.0
    }
}
