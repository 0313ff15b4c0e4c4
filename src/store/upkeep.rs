//! What one worker of all does for a version: its lease, and cleaning up in batches.

use std::time::Duration;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::{Limit, Store, StoreError};

/// Rows that one statement looks at, so that none of them lasts long.
const PAGE: i64 = 5_000;

impl Store {
    /// Takes or renews the lease on the upkeep of `version`, and says whether `holder` has
    /// it.
    pub async fn take_upkeep(
        &self,
        version: &str,
        holder: &str,
        lease: Duration,
    ) -> Result<bool, StoreError> {
        let work = async {
            let secs = lease.as_secs_f64();
            let taken = sqlx::query_file!("sql/queries/take_upkeep.sql", version, holder, secs)
                .execute(&self.pool)
                .await?;
            Ok(taken.rows_affected() > 0)
        };
        self.measured("upkeep", work).await
    }

    /// Looks at a page of states above `after`, and enqueues the notes that are gone while
    /// their state is still there. Returns where the page ended and how many those were,
    /// `None` behind the last state.
    pub async fn enqueue_gone(
        &self,
        version: &str,
        after: Uuid,
    ) -> Result<Option<(Uuid, i64)>, StoreError> {
        let work = async {
            let page = sqlx::query_file!("sql/queries/enqueue_gone.sql", version, after, PAGE)
                .fetch_optional(&self.pool)
                .await?;
            Ok(page.map(|page| (page.last, page.gone)))
        };
        self.measured("upkeep", work).await
    }

    /// Drops the rows of `version`, which is being built, that a newer row of their note
    /// makes superfluous. Returns how many.
    pub async fn coalesce_building(&self, version: &str) -> Result<i64, StoreError> {
        let work = async {
            let mut dropped = 0;
            let mut after = (DateTime::<Utc>::UNIX_EPOCH, Uuid::nil());
            loop {
                let page = sqlx::query_file!(
                    "sql/queries/coalesce_building.sql",
                    version,
                    after.0,
                    after.1,
                    PAGE
                )
                .fetch_optional(&self.pool)
                .await?;
                let Some(page) = page else {
                    return Ok(dropped);
                };
                dropped += page.gone;
                after = (page.due, page.last);
            }
        };
        self.measured_within(Limit::Upkeep, "upkeep", work).await
    }
}
