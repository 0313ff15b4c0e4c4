//! The lease on the one rebuild, reindex or swap that may run.

use std::time::Duration;

use chrono::{DateTime, Utc};

use super::{Limit, Store, StoreError, Transaction};

/// A row of `index_job`: the process that works on the index as a whole.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct RunningJob {
    /// `rebuild`, `reindex`…
    pub kind: String,
    /// The collection or version that it works on.
    pub subject: String,
    /// Host and process that run it.
    pub holder: String,
    /// By the clock of Postgres.
    pub started_at: DateTime<Utc>,
    /// When its lease expires.
    pub lease_until: DateTime<Utc>,
    /// Points or notes so far.
    pub done: i64,
    /// Points or notes in all.
    pub total: i64,
}

/// What the holder of the job proves with each step that it still has it.
#[derive(Debug, Clone)]
pub struct JobLease(String);

/// While this lives, no other process can take the job. Postgres gives it up for a process that
/// hangs, see [`Store::hold_job`].
pub struct HeldJob(Transaction);

impl HeldJob {
    /// An error if the job may have been taken before this.
    pub async fn release(self) -> Result<(), StoreError> {
        Ok(self.0.commit().await?)
    }
}

impl JobLease {
    /// The lease of this holder.
    pub fn of(holder: &str) -> Self {
        Self(holder.to_owned())
    }

    /// Keeps other processes from taking the job until the transaction ends.
    pub(super) async fn hold(&self, tx: &mut Transaction) -> Result<(), StoreError> {
        let held = sqlx::query_file!("sql/queries/hold_job.sql", &self.0);
        let held = held.fetch_optional(&mut **tx).await?;
        held.map(|_| ()).ok_or(StoreError::JobLost)
    }
}

impl Store {
    /// Leases the one job to `holder` if no other process has it, and returns the job that runs
    /// now.
    pub async fn take_job(
        &self,
        kind: &str,
        subject: &str,
        holder: &str,
        lease: Duration,
    ) -> Result<RunningJob, StoreError> {
        loop {
            let job = sqlx::query_file_as!(
                RunningJob,
                "sql/queries/take_job.sql",
                kind,
                subject,
                holder,
                lease.as_secs_f64()
            )
            .fetch_optional(&self.pool)
            .await?;
            // None when its holder released it between the two halves of the statement.
            if let Some(job) = job {
                return Ok(job);
            }
        }
    }

    /// Renews the lease of `holder` and records its progress. `false` when another process has
    /// the job now.
    pub async fn renew_job(
        &self,
        holder: &str,
        lease: Duration,
        done: u64,
        total: u64,
    ) -> Result<bool, StoreError> {
        let renewal = sqlx::query_file!(
            "sql/queries/renew_job.sql",
            holder,
            lease.as_secs_f64(),
            done as i64,
            total as i64
        )
        .execute(&self.pool);
        Ok(self
            .answered(Limit::Statement, renewal)
            .await?
            .rows_affected()
            > 0)
    }

    /// Keeps other processes from taking the job for a request to the vector engine, which cannot
    /// check the lease itself. A process that hangs meanwhile loses it after half a minute.
    pub async fn hold_job(&self, job: &JobLease) -> Result<HeldJob, StoreError> {
        let work = async {
            let mut tx = self.begin_step(job).await?;
            // Longer than a request takes.
            sqlx::query("set local idle_in_transaction_session_timeout = '30s'")
                .execute(&mut *tx)
                .await?;
            Ok::<_, StoreError>(HeldJob(tx))
        };
        self.answered(Limit::Statement, work).await
    }

    /// Begins a transaction of the job. No other process can take the job until it ends.
    pub(super) async fn begin_step(&self, job: &JobLease) -> Result<Transaction, StoreError> {
        let mut tx = self.begin().await?;
        job.hold(&mut tx).await?;
        Ok(tx)
    }

    /// Lets another process take the job. Does nothing if one has it already.
    pub async fn end_job(&self, holder: &str) -> Result<(), StoreError> {
        sqlx::query!("delete from index_job where holder = $1", holder)
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    /// The job that is running, if one is.
    pub async fn running_job(&self) -> Result<Option<RunningJob>, StoreError> {
        let job = sqlx::query_as!(
            RunningJob,
            "select kind, subject, holder, started_at, lease_until, done, total
               from index_job where lease_until > now()"
        )
        .fetch_optional(&self.pool);
        self.answered(Limit::Statement, job).await
    }
}
