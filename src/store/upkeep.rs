//! Upkeep, which one of the workers does for a version: its lease, expired notes, and cleaning up
//! in batches.

use std::time::Duration;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::{Store, StoreError};

/// Rows that one statement reads. The limit keeps each statement short.
const PAGE: i64 = 5_000;

/// When an outbox row is due, and its id: claims take the rows in this order.
pub type OutboxPosition = (DateTime<Utc>, Uuid);

/// When a note expires, as Postgres writes it, and its id.
pub type ExpiryPosition = (String, Uuid);

/// What a page of expired notes led to.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Expired {
    /// Notes that were enqueued.
    pub enqueued: i64,
    /// Where the next page begins, if this one may not be the last.
    pub next: Option<ExpiryPosition>,
}

impl Store {
    /// Takes or renews the lease on the upkeep of `version`. Returns whether `holder` has it.
    pub async fn take_upkeep(
        &self,
        version: &str,
        holder: &str,
        lease: Duration,
    ) -> Result<bool, StoreError> {
        let secs = lease.as_secs_f64();
        let taken = sqlx::query_file!("sql/queries/take_upkeep.sql", version, holder, secs);
        let taken = self
            .asked("upkeep", taken.fetch_optional(&self.pool))
            .await?;
        Ok(taken.is_some())
    }

    /// Ends the lease of `holder` on the upkeep of `version`.
    pub async fn release_upkeep(&self, version: &str, holder: &str) -> Result<(), StoreError> {
        let release = sqlx::query_file!("sql/queries/release_upkeep.sql", version, holder);
        self.asked("upkeep", release.execute(&self.pool)).await?;
        Ok(())
    }

    /// Reads a page of the outbox rows of `version` that are not due, after the row `after`.
    /// Reschedules those that were written before the clock of Postgres went back, which would wait
    /// as long as it went back. Returns the last row of the page and the number of rescheduled ones;
    /// `None` after the last row.
    pub async fn reschedule_ahead(
        &self,
        version: &str,
        after: Option<OutboxPosition>,
    ) -> Result<Option<(OutboxPosition, i64)>, StoreError> {
        let work = async {
            let page = sqlx::query_file!(
                "sql/queries/reschedule_ahead.sql",
                version,
                after.map(|(due, _)| due),
                after.map(|(_, row)| row),
                PAGE
            );
            let page = self.page(page).await?.pop();
            Ok(page.map(|page| ((page.due, page.last), page.rescheduled)))
        };
        self.measured("upkeep", work).await
    }

    /// Reads a page of states above `after`, and enqueues those whose note is deleted. Returns
    /// the last note id of the page and the number of enqueued notes; `None` after the last
    /// state.
    pub async fn enqueue_gone(
        &self,
        version: &str,
        after: Uuid,
    ) -> Result<Option<(Uuid, i64)>, StoreError> {
        let work = async {
            let page = sqlx::query_file!("sql/queries/enqueue_gone.sql", version, after, PAGE);
            let page = self.page(page).await?.pop();
            Ok(page.map(|page| (page.last, page.gone)))
        };
        self.measured("upkeep", work).await
    }

    /// Reads a page of outbox rows of `version`, which is being built, after the row `after`, and
    /// puts one new row in the place of several of a note. Returns the last row of the page and by how
    /// many rows there are fewer; `None` after the last row.
    pub async fn coalesce_building(
        &self,
        version: &str,
        after: OutboxPosition,
    ) -> Result<Option<(OutboxPosition, i64)>, StoreError> {
        let (due, last) = after;
        let work = async {
            let page = sqlx::query_file!(
                "sql/queries/coalesce_building.sql",
                version,
                due,
                last,
                PAGE
            );
            let page = self.page(page).await?.pop();
            Ok(page.map(|page| ((page.due, page.last), page.gone)))
        };
        self.measured("upkeep", work).await
    }

    /// Reads a page of the notes whose `expires_at` has passed within `look_back`, behind the note
    /// `after`, and enqueues those that still have points. `None` means at any time, and from the
    /// beginning. With `is_backlog` those of a full page are not claimed before other rows, as rows
    /// are that were just written.
    pub async fn expire(
        &self,
        version: &str,
        look_back: Option<Duration>,
        after: Option<&ExpiryPosition>,
        is_backlog: bool,
    ) -> Result<Expired, StoreError> {
        let page = sqlx::query_file!(
            "sql/queries/expire.sql",
            version,
            look_back.map(|time| time.as_secs_f64()),
            after.map(|(at, _)| at.as_str()),
            after.map(|(_, note)| *note),
            PAGE,
            is_backlog
        );
        let page = self
            .asked("expire", page.fetch_optional(&self.keyed))
            .await?;
        Ok(page.map_or_else(Expired::default, |page| Expired {
            enqueued: page.enqueued,
            next: (page.read >= PAGE).then_some((page.at, page.last)),
        }))
    }

    /// Deletes done rows that have been kept for `retention`.
    pub async fn drop_done(&self, retention: Duration) -> Result<u64, StoreError> {
        let done = sqlx::query_file!("sql/queries/drop_done.sql", retention.as_secs_f64());
        let done = self.asked("upkeep", done.execute(&self.pool)).await?;
        Ok(done.rows_affected())
    }
}
