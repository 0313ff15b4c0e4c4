//! The verify that workers run by themselves: when one is due, and how far it is.

use std::time::Duration;

use uuid::Uuid;

use super::{Limit, Store, StoreError};

/// How far a worker's own verify has come.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct VerifyCursor {
    /// Every chunk and point up to this id is compared.
    pub chunks_upto: Uuid,
    /// Every note up to this id is compared.
    pub notes_upto: Uuid,
}

/// A worker's own verify that has begun.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BegunVerify {
    /// Each gets its own: with it the worker records how far it has come.
    pub number: i64,
    /// Where it begins, or goes on.
    pub from: VerifyCursor,
    /// Whether it was demanded: something may be wrong now.
    pub is_requested: bool,
}

impl Store {
    /// Where a worker's own verify of `version` begins, if it is time for one: once in
    /// `interval` over all workers, when one was demanded, or where its worker died. For
    /// `None` as interval, only when demanded. Asking begins it, under a lease.
    pub async fn begin_verify(
        &self,
        version: &str,
        interval: Option<Duration>,
        lease: Duration,
    ) -> Result<Option<BegunVerify>, StoreError> {
        let begun = sqlx::query_file!(
            "sql/queries/begin_verify.sql",
            version,
            interval.map(|interval| interval.as_secs_f64()) as _,
            lease.as_secs_f64()
        )
        .fetch_optional(&self.pool);
        let begun = self.answered(Limit::Statement, begun).await?;
        Ok(begun.map(|row| BegunVerify {
            number: row.number,
            from: VerifyCursor {
                chunks_upto: row.chunks_upto,
                notes_upto: row.notes_upto,
            },
            is_requested: row.is_requested,
        }))
    }

    /// Records how far a worker's own verify has come, and renews its lease.
    pub async fn record_verify(
        &self,
        version: &str,
        number: i64,
        swept: VerifyCursor,
        lease: Duration,
    ) -> Result<(), StoreError> {
        let kept = sqlx::query_file!(
            "sql/queries/record_verify.sql",
            version,
            swept.chunks_upto,
            swept.notes_upto,
            lease.as_secs_f64(),
            number
        )
        .execute(&self.pool);
        self.answered(Limit::Statement, kept).await?;
        Ok(())
    }

    /// Records that a worker's own verify has come to the end.
    pub async fn end_verify(&self, version: &str, number: i64) -> Result<(), StoreError> {
        let ended =
            sqlx::query_file!("sql/queries/end_verify.sql", version, number).execute(&self.pool);
        self.answered(Limit::Statement, ended).await?;
        Ok(())
    }

    /// Has a worker verify and repair the whole index as soon as it can, without waiting
    /// for the interval.
    pub async fn request_verify(&self, version: &str) -> Result<(), StoreError> {
        let demanded =
            sqlx::query_file!("sql/queries/request_verify.sql", version).execute(&self.pool);
        self.answered(Limit::Statement, demanded).await?;
        Ok(())
    }

    /// Whether this is another Postgres than workers last saw, by system identifier and
    /// timeline: one that was promoted or restored. Then it has demanded a verify of each
    /// version. A service that tells neither is taken for the same.
    pub async fn is_another_server(&self) -> Result<bool, StoreError> {
        let seen = sqlx::query_file!("sql/queries/see_server.sql").fetch_optional(&self.pool);
        match self.answered(Limit::Statement, seen).await {
            Err(StoreError::Unavailable(reason)) => Err(StoreError::Unavailable(reason)),
            Err(error) => {
                tracing::debug!(%error, "Postgres does not say which server it is");
                Ok(false)
            }
            Ok(seen) => Ok(seen.is_some()),
        }
    }
}
