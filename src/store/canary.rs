//! Which version answers a share of the searches before it is served, and what both found
//! (`index_canary`).

use chrono::{DateTime, Utc};
use serde_json::Value;

use super::{Limit, Store, StoreError};

/// A row of `index_canary`.
#[derive(Debug, Clone, serde::Serialize)]
pub struct CanaryRow {
    /// The version that is built.
    pub version: String,
    /// The share of the searches that it answers, 0 to 1; 0 when it has ended.
    pub share: f64,
    /// Why ELF ended it.
    pub ended: Option<String>,
    /// What the searches of both versions found.
    pub tallies: Value,
    /// By the clock of Postgres.
    pub started_at: DateTime<Utc>,
}

impl Store {
    /// The canary of a version that is built.
    pub async fn canary(&self) -> Result<Option<CanaryRow>, StoreError> {
        let row = sqlx::query_file!("sql/queries/canary.sql").fetch_optional(&self.pool);
        let row = self.answered(Limit::Statement, row).await?;
        Ok(row.map(|row| CanaryRow {
            version: row.embedding_version,
            share: row.share,
            ended: row.ended,
            tallies: row.tallies,
            started_at: row.started_at,
        }))
    }

    /// Lets `version` answer this share of the searches from now on. Returns false if it is not being
    /// built.
    pub async fn start_canary(
        &self,
        version: &str,
        share: f64,
        tallies: &Value,
    ) -> Result<bool, StoreError> {
        let started = sqlx::query_file!("sql/queries/start_canary.sql", version, share, tallies);
        let started = self.answered(Limit::Statement, started.execute(&self.pool));
        Ok(started.await?.rows_affected() > 0)
    }

    /// Ends the canary of `version`, with the reason if ELF ends it. Returns false if it had ended.
    pub async fn end_canary(
        &self,
        version: &str,
        reason: Option<&str>,
    ) -> Result<bool, StoreError> {
        let ended = sqlx::query!(
            "update index_canary set share = 0, ended = $2 where embedding_version = $1 and share > 0::float8",
            version,
            reason
        );
        let ended = self.answered(Limit::Statement, ended.execute(&self.pool));
        Ok(ended.await?.rows_affected() > 0)
    }

    /// Replaces what the searches found by what `add` makes of it.
    pub async fn count_canary(
        &self,
        version: &str,
        add: impl FnOnce(Value) -> Value + Send,
    ) -> Result<(), StoreError> {
        let work = async {
            let mut tx = self.begin().await?;
            let tallies = sqlx::query_scalar!(
                "select tallies from index_canary where embedding_version = $1 for update",
                version
            );
            let Some(tallies) = tallies.fetch_optional(&mut *tx).await? else {
                return Ok(());
            };
            sqlx::query!(
                "update index_canary set tallies = $2 where embedding_version = $1",
                version,
                add(tallies)
            )
            .execute(&mut *tx)
            .await?;
            tx.commit().await?;
            Ok::<_, StoreError>(())
        };
        self.answered(Limit::Statement, work).await
    }
}
