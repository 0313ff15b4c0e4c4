//! What no outbox row asks for: notes that expire, done rows that are old, states of notes
//! that are gone. One worker of all that keep a version does it, and counts; if that one
//! dies, another does when its lease is over. Twenty workers that read whole tables would
//! between them keep Postgres from vacuuming for ever.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::tidy::Tidy;
use super::{Shared, WorkerContext};
use crate::registry::{self, IndexContext, SetupError};

/// Far longer than a note needs from the claim to the index: a note that was
/// indexed across its own expiry is seen by a later look.
const LOOK_BACK: Duration = Duration::from_secs(600);

/// After an outage of this length the worker looks at all expired notes: the last one that
/// ended well may be too long ago for a look back.
const LONG_OUTAGE: Duration = Duration::from_secs(300);

/// Two small queries and a request to the engine.
const LOOK_AT_ALIAS_EVERY: Duration = Duration::from_secs(5);

/// How often all expired notes are looked at.
const ALL_EVERY: Duration = Duration::from_secs(3_600);

/// The lease on the upkeep of a version, for a worker that polls at this interval.
fn lease(poll: Duration) -> Duration {
    (poll * 10).max(Duration::from_secs(30))
}

/// Expires notes at every poll interval. Runs until dropped.
pub async fn run(shared: Arc<Shared>) {
    let poll = Duration::from_millis(shared.settings.poll_interval_ms);
    let mut ticks = tokio::time::interval(poll);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut full_at = None;
    let mut expired_at = None;
    let mut aliases = tokio::time::interval(LOOK_AT_ALIAS_EVERY);
    let mut asked_at = None;
    let mut tidy = Tidy::default();
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            _ = aliases.tick() => {
                reconcile_alias(&shared).await;
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
            tidy.keep(&shared, now).await;
            let look_back = look_back(now, expired_at, full_at);
            if expire_notes(&shared, look_back).await {
                expired_at = Some(now);
                if look_back.is_none() {
                    full_at = Some(now);
                }
            }
        }
        notice_retirement(&shared).await;
    }
}

fn is_over(at: Option<Instant>, now: Instant, interval: Duration) -> bool {
    at.is_none_or(|at| now - at >= interval)
}

/// Asks for the lease, or renews it. A worker that cannot ask has lost it.
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
        tracing::debug!(%error, "could not ask for the upkeep lease");
        false
    });
    shared.upkeep.send_replace(has_upkeep);
}

/// How far back to look at `now`, `None` for all time, when the last one and
/// the last one that looked at all began then and ended well.
fn look_back(now: Instant, last: Option<Instant>, full: Option<Instant>) -> Option<Duration> {
    let is_recent = |at: Option<Instant>, limit| at.is_some_and(|at| now - at < limit);
    (is_recent(last, LONG_OUTAGE) && is_recent(full, ALL_EVERY)).then_some(LOOK_BACK)
}

/// A swap that died between its commit and the alias, or an operator's hand.
async fn reconcile_alias(shared: &Shared) {
    if shared.circuit.outage().is_some() {
        return;
    }
    // `/readyz` and the check after an outage say what is wrong.
    if let Err(error) = registry::reconcile_alias(&shared.context.stores).await {
        tracing::debug!(%error, "could not look at the alias");
    }
}

/// Expires every note that is due, however long ago.
pub async fn once(shared: &Shared) {
    expire_notes(shared, None).await;
}

/// Claims of a version that was retired find nothing, and that looks like peace. The
/// gate says it, and opens again after a rollback.
async fn notice_retirement(shared: &Shared) {
    if shared.circuit.outage().is_some() {
        return;
    }
    let WorkerContext {
        stores: IndexContext { store, .. },
        version,
        ..
    } = &shared.context;
    if let Err(error @ SetupError::Mismatch(_)) = registry::kept_in_step(store, &version.name).await
    {
        shared.circuit.open(error.to_string());
        shared.wake.notify_one();
    }
}

/// Whether it ended well.
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
            // Without LISTEN nobody else would tell.
            shared.wake.notify_one();
            true
        }
        // The claim loop meets the same outage and says so.
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
