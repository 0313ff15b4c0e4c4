//! What no outbox row asks for: notes that expire, done rows that are old.

use std::sync::Arc;
use std::time::Duration;

use super::setup::{self, SetupError};
use super::{Shared, Tools};

/// Far longer than a note needs from the claim to the index: a note that was
/// indexed across its own expiry is seen by a later sweep.
const LOOK_BACK: Duration = Duration::from_secs(600);

/// Every how many sweeps all expired notes are looked at.
const FULL_SWEEP_EVERY: u32 = 3_600;

/// Sweeps at every poll interval. Runs until dropped.
pub async fn run(shared: Arc<Shared>) {
    let mut ticks = tokio::time::interval(Duration::from_millis(shared.settings.poll_interval_ms));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    for n in (0..FULL_SWEEP_EVERY).cycle() {
        ticks.tick().await;
        // Without a look at the gate, each sweep of an outage would be one more connection.
        if shared.gate.outage().is_none() {
            sweep(&shared, (n > 0).then_some(LOOK_BACK)).await;
        }
        notice_retirement(&shared).await;
    }
}

/// One full sweep.
pub async fn once(shared: &Shared) {
    sweep(shared, None).await;
}

/// Claims of a version that was retired find nothing, and that looks like peace. The
/// gate says it, and opens again after a rollback.
async fn notice_retirement(shared: &Shared) {
    if shared.gate.outage().is_some() {
        return;
    }
    let Tools { store, version, .. } = &shared.tools;
    if let Err(error @ SetupError::Mismatch(_)) = setup::kept_in_step(store, &version.name).await {
        shared.gate.close(error.to_string());
        shared.wake.notify_one();
    }
}

async fn sweep(shared: &Shared, look_back: Option<Duration>) {
    let store = &shared.tools.store;
    let swept = async {
        let expired = store.expire(&shared.tools.version.name, look_back).await?;
        if !shared.keep_done.is_zero() {
            store.drop_done(shared.keep_done).await?;
        }
        Ok::<u64, crate::store::StoreError>(expired)
    };
    match swept.await {
        Ok(0) => {}
        Ok(expired) => {
            tracing::debug!(expired, "notes expired");
            // Without LISTEN nobody else would tell.
            shared.wake.notify_one();
        }
        // The claim loop meets the same outage and says so.
        Err(error) => tracing::debug!(%error, "could not sweep"),
    }
}
