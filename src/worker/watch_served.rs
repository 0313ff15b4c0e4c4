//! Watches what is served. Every worker does, without a lease: it moves an alias that is wrong,
//! and notices that its own version was retired.

use std::time::Duration;

use super::{Pipeline, Shared};
use crate::serving::{self, Serving, ServingError};

/// Often, because a look costs three small queries and a request to the engine.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Looks until dropped.
pub async fn run(shared: &Shared) {
    let mut ticks = tokio::time::interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        notice_retirement(shared).await;
        reconcile_alias(shared).await;
    }
}

/// Repairs the alias after a swap that died between its commit and the alias, or after an
/// operator moved it.
async fn reconcile_alias(shared: &Shared) {
    if shared.circuit.outage().is_some() {
        return;
    }
    // `/readyz` and the check after an outage report the error.
    if let Err(error) = serving::reconcile_alias(&shared.pipeline.serving).await {
        tracing::debug!(%error, "could not reconcile the alias");
    }
}

/// Opens the store circuit when the version was retired. Claims of a retired version find no
/// rows, so the worker would look idle. The circuit reports the reason, and closes after a
/// rollback.
async fn notice_retirement(shared: &Shared) {
    if shared.circuit.outage().is_some() {
        return;
    }
    let Pipeline {
        serving: Serving { store, .. },
        version,
        ..
    } = &shared.pipeline;
    if let Err(error @ ServingError::Mismatch(_)) =
        serving::version_unless_retired(store, &version.name).await
    {
        shared.circuit.open(error.to_string());
        shared.wake.notify_one();
    }
}
