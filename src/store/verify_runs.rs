//! The verify that workers run by themselves: when one is due, and its progress.

use std::time::Duration;

use uuid::Uuid;

use super::{Limit, Store, StoreError};

/// The progress of a worker's own verify.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct VerifyCursor {
    /// Every chunk and point up to this id is compared.
    pub chunks: Uuid,
    /// Every note up to this id is compared.
    pub notes: Uuid,
}

/// A worker's own verify that has begun.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BegunVerify {
    /// Each has its own number, under which the worker records its progress.
    pub number: i64,
    /// Where it begins or resumes.
    pub from: VerifyCursor,
    /// Whether it was requested, because the index may have drifted.
    pub is_requested: bool,
}

impl Store {
    /// Begins a worker's own verify of `version`, under a lease, if one is due. One is due once
    /// in `interval` over all workers (never, if that is `None`), when one was requested, and
    /// when the worker of the last one died: that one is resumed.
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
                chunks: row.chunks_upto,
                notes: row.notes_upto,
            },
            is_requested: row.is_requested,
        }))
    }

    /// Records the progress of a worker's own verify, and renews its lease.
    pub async fn record_verify(
        &self,
        version: &str,
        number: i64,
        cursor: VerifyCursor,
        lease: Duration,
    ) -> Result<(), StoreError> {
        let kept = sqlx::query_file!(
            "sql/queries/record_verify.sql",
            version,
            cursor.chunks,
            cursor.notes,
            lease.as_secs_f64(),
            number
        )
        .execute(&self.pool);
        self.answered(Limit::Statement, kept).await?;
        Ok(())
    }

    /// Records the end of a worker's own verify.
    pub async fn end_verify(&self, version: &str, number: i64) -> Result<(), StoreError> {
        let ended =
            sqlx::query_file!("sql/queries/end_verify.sql", version, number).execute(&self.pool);
        self.answered(Limit::Statement, ended).await?;
        Ok(())
    }

    /// Requests that a worker verifies and repairs the whole index as soon as it can, without
    /// waiting for the interval.
    pub async fn request_verify(&self, version: &str) -> Result<(), StoreError> {
        let requested =
            sqlx::query_file!("sql/queries/request_verify.sql", version).execute(&self.pool);
        self.answered(Limit::Statement, requested).await?;
        Ok(())
    }

    /// Whether this is another Postgres than workers last saw, by system identifier and
    /// timeline: one that was promoted or restored. If so, it has requested a verify of each
    /// version. Some managed services hide both values; for them the answer is `false`.
    pub async fn record_server_identity(&self) -> Result<bool, StoreError> {
        let seen = sqlx::query_file!("sql/queries/record_server.sql").fetch_optional(&self.pool);
        match self.answered(Limit::Statement, seen).await {
            Err(error) if error.class().may_pass() => Err(error),
            Err(error) => {
                tracing::debug!(%error, "could not read the identity of the Postgres server");
                Ok(false)
            }
            Ok(seen) => Ok(seen.is_some()),
        }
    }
}
