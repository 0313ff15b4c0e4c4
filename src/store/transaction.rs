//! A transaction that leaves its connection in order, wherever its future is dropped.

use std::ops::{Deref, DerefMut};

use sqlx::pool::PoolConnection;
use sqlx::{PgConnection, PgPool, Postgres};
use tokio::runtime::Handle;

use super::RETURN_LIMIT;

/// Dropped without a commit, it is rolled back, also while it begins. (sqlx's own transaction is not:
/// each connection that came back to the pool would have to be asked whether one is open.)
pub(super) struct Transaction {
    /// `None` once the transaction has ended.
    connection: Option<PoolConnection<Postgres>>,
}

impl Transaction {
    /// Begins one. `begin` may set things as well, in the same message.
    pub(super) async fn begin(pool: &PgPool, begin: &'static str) -> Result<Self, sqlx::Error> {
        let mut transaction = Self {
            connection: Some(pool.acquire().await?),
        };
        sqlx::raw_sql(begin).execute(&mut *transaction).await?;
        Ok(transaction)
    }

    pub(super) async fn commit(self) -> Result<(), sqlx::Error> {
        self.end("commit").await
    }

    /// As without, but the next statement of this task finds the connection free.
    pub(super) async fn rollback(self) -> Result<(), sqlx::Error> {
        self.end("rollback").await
    }

    async fn end(mut self, statement: &'static str) -> Result<(), sqlx::Error> {
        sqlx::raw_sql(statement).execute(&mut *self).await?;
        self.connection = None;
        Ok(())
    }
}

impl Deref for Transaction {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        self.connection.as_ref().expect(HAS_NOT_ENDED)
    }
}

impl DerefMut for Transaction {
    fn deref_mut(&mut self) -> &mut PgConnection {
        self.connection.as_mut().expect(HAS_NOT_ENDED)
    }
}

const HAS_NOT_ENDED: &str = "a commit takes the transaction";

impl Drop for Transaction {
    fn drop(&mut self) {
        let (Some(mut connection), Ok(runtime)) = (self.connection.take(), Handle::try_current())
        else {
            return;
        };
        runtime.spawn(async move {
            // Behind the statement that was in flight, if one was.
            let rollback = sqlx::raw_sql("rollback").execute(&mut *connection);
            let ended = tokio::time::timeout(RETURN_LIMIT, rollback).await;
            if !matches!(ended, Ok(Ok(_))) {
                connection.close_on_drop();
            }
        });
    }
}
