//! The upkeep: enqueues expired notes, deletes old done rows, and cleans up (`tidy`). One of the
//! workers of a version does it under the upkeep lease; if it dies, another takes over when the
//! lease expires. The observer of the same worker counts notes and chunks. If every worker read
//! whole tables, there would always be an open snapshot, and Postgres could not vacuum.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::tidy::Tidy;
use super::{Shared, WorkerContext, watch_served};
use crate::registry::IndexContext;

/// Far longer than a note needs from the claim to the index, so that a later look finds a note
/// that expired while a worker indexed it.
const LOOK_BACK: Duration = Duration::from_secs(600);

/// After an outage of this length the worker looks at all expired notes: notes that expired
/// during the outage may be older than [`LOOK_BACK`].
const LONG_OUTAGE: Duration = Duration::from_secs(300);

/// How often all expired notes are looked at.
const ALL_EVERY: Duration = Duration::from_secs(3_600);

/// The lease on the upkeep of a version, for a worker that polls at this interval.
fn lease(poll: Duration) -> Duration {
    (poll * 10).max(Duration::from_secs(30))
}

/// At every poll interval: asks for the upkeep lease when it is time, and does the upkeep while
/// it holds the lease. Every worker also watches what is served, without the lease. Runs until
/// dropped.
pub async fn run(shared: Arc<Shared>) {
    let poll = Duration::from_millis(shared.settings.poll_interval_ms);
    let mut ticks = tokio::time::interval(poll);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut full_at = None;
    let mut expired_at = None;
    let mut aliases = tokio::time::interval(watch_served::LOOK_AT_ALIAS_EVERY);
    let mut asked_at = None;
    let mut tidy = Tidy::default();
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            _ = aliases.tick() => {
                watch_served::reconcile_alias(&shared).await;
                continue;
            }
        }
        // Without asking the circuit, each look during an outage would be one more connection.
        if shared.circuit.outage().is_none() {
            let now = Instant::now();
            if is_over(asked_at, now, lease(poll) / 3) {
                asked_at = Some(now);
                take_upkeep(&shared, lease(poll)).await;
            }
        }
        let has_upkeep = *shared.upkeep.borrow();
        if has_upkeep && shared.circuit.outage().is_none() {
            let now = Instant::now();
            tidy.clean_up_if_due(&shared, now).await;
            let look_back = look_back(now, expired_at, full_at);
            if expire_notes(&shared, look_back).await {
                expired_at = Some(now);
                if look_back.is_none() {
                    full_at = Some(now);
                }
            }
        }
        watch_served::notice_retirement(&shared).await;
    }
}

fn is_over(at: Option<Instant>, now: Instant, interval: Duration) -> bool {
    at.is_none_or(|at| now - at >= interval)
}

/// Takes or renews the upkeep lease. If Postgres does not answer, the worker assumes that it
/// lost the lease.
async fn take_upkeep(shared: &Shared, lease: Duration) {
    let WorkerContext {
        stores: IndexContext { store, .. },
        version,
        ..
    } = &shared.context;
    let taken = store
        .take_upkeep(&version.name, &shared.holder, lease)
        .await;
    let has_upkeep = taken.unwrap_or_else(|error| {
        tracing::debug!(%error, "could not take the upkeep lease");
        false
    });
    shared.upkeep.send_replace(has_upkeep);
}

/// How far back to look for expired notes at `now`; `None` looks at all of them. `last` and
/// `full` are the starts of the last successful look and the last successful look at all.
fn look_back(now: Instant, last: Option<Instant>, full: Option<Instant>) -> Option<Duration> {
    let is_recent = |at: Option<Instant>, limit| at.is_some_and(|at| now - at < limit);
    (is_recent(last, LONG_OUTAGE) && is_recent(full, ALL_EVERY)).then_some(LOOK_BACK)
}

/// Expires every note that is due, however long ago.
pub async fn once(shared: &Shared) {
    expire_notes(shared, None).await;
}

/// Enqueues expired notes and deletes old done rows. Returns whether it succeeded.
async fn expire_notes(shared: &Shared, look_back: Option<Duration>) -> bool {
    let store = &shared.context.stores.store;
    let work = async {
        let expired = store
            .expire(&shared.context.version.name, look_back)
            .await?;
        if !shared.keep_done.is_zero() {
            store.drop_done(shared.keep_done).await?;
        }
        Ok::<u64, crate::store::StoreError>(expired)
    };
    match work.await {
        Ok(0) => true,
        Ok(expired) => {
            tracing::debug!(expired, "notes expired");
            // Without LISTEN no notification would wake the worker.
            shared.wake.notify_one();
            true
        }
        // The claim loop meets the same outage and logs it.
        Err(error) => {
            tracing::debug!(%error, "could not expire notes");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_long_outage_all_expired_notes_are_looked_at() {
        let start = Instant::now();
        let at = |secs| start + Duration::from_secs(secs);
        assert_eq!(look_back(at(0), None, None), None);
        assert_eq!(look_back(at(1), Some(at(0)), Some(at(0))), Some(LOOK_BACK));
        assert_eq!(look_back(at(301), Some(at(0)), Some(at(0))), None);
        assert_eq!(look_back(at(3_600), Some(at(3_599)), Some(at(0))), None);
    }
}
