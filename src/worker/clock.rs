//! What to do when the clock of Postgres has gone back: after a failover to a server whose clock is behind,
//! or after a correction.
//!
//! A lease that was taken later than now counts as none: `claim.sql`. The worker reschedules outbox rows that
//! were written later than now. Otherwise they would wait as long as the clock went back.

use std::time::{Duration, Instant};

use super::Shared;
use crate::store::{OutboxPosition, StoreError};

/// How often to look for such rows.
const EVERY: Duration = Duration::from_secs(5);

/// How long one look may read rows that are not due. Applications may have scheduled millions.
const FOR: Duration = Duration::from_millis(100);

/// A walk over the outbox rows that are not due, in the order in which they will be.
#[derive(Debug, Default)]
pub struct Ahead {
    at: Option<Instant>,
    after: Option<OutboxPosition>,
}

impl Ahead {
    /// Goes on with the walk, if it is time. Behind the last row it begins again.
    pub async fn reschedule_if_due(&mut self, shared: &Shared, now: Instant) {
        if self.at.is_some_and(|at| now - at < EVERY) {
            return;
        }
        self.at = Some(now);
        while now.elapsed() < FOR {
            match reschedule(shared, self.after).await {
                Ok(after) => self.after = after,
                Err(error) => return report(&error),
            }
            if self.after.is_none() {
                return;
            }
        }
    }
}

/// Walks over all of them.
pub async fn reschedule_all(shared: &Shared) {
    let mut after = None;
    loop {
        match reschedule(shared, after).await {
            Ok(None) => return,
            Ok(last) => after = last,
            Err(error) => return report(&error),
        }
    }
}

/// Reschedules the rows of a page. Returns its last row.
async fn reschedule(
    shared: &Shared,
    after: Option<OutboxPosition>,
) -> Result<Option<OutboxPosition>, StoreError> {
    let (store, version) = shared.store_and_version();
    let page = store.reschedule_ahead(version, after).await?;
    let Some((last, rescheduled)) = page else {
        return Ok(None);
    };
    if rescheduled > 0 {
        tracing::warn!(
            rescheduled,
            "the clock of Postgres went back, outbox rows from before rescheduled"
        );
        shared.wake.notify_one();
    }
    Ok(Some(last))
}

fn report(error: &StoreError) {
    tracing::debug!(%error, "could not look for outbox rows that were written later than now");
}
