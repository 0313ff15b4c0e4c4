//! Watches what is served. Every worker does, without a lease: it moves an alias that is wrong,
//! and notices that its own version was retired, or that other fields than its own were declared.

use std::time::Duration;

use super::Shared;
use crate::serving::{self, ServingError};

/// Often, because a look costs only four small queries and a request to the engine.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Looks until dropped.
pub async fn run(shared: &Shared) {
    let mut ticks = tokio::time::interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut told = None;
    loop {
        ticks.tick().await;
        notice_retirement(shared).await;
        notice_other_fields(shared, &mut told).await;
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

/// Opens the storage circuit when the version was retired. Claims of a retired version find no
/// rows, so the worker would look idle. The circuit reports the reason, and closes after a
/// rollback.
async fn notice_retirement(shared: &Shared) {
    if shared.circuit.outage().is_some() {
        return;
    }
    let (store, version) = shared.store_and_version();
    if let Err(error @ ServingError::Mismatch(_)) =
        serving::version_unless_retired(store, version).await
    {
        shared.circuit.open(error.to_string());
        shared.wake.notify_one();
    }
}

/// Says once that a worker with another `[metadata]` has started. Filters follow what that one has declared.
async fn notice_other_fields(shared: &Shared, told: &mut Option<String>) {
    if shared.circuit.outage().is_some() {
        return;
    }
    let serving = &shared.pipeline.serving;
    let Ok(problem) = serving::fields_problem(&serving.store, &serving.fields).await else {
        return;
    };
    if *told != problem {
        if let Some(problem) = &problem {
            tracing::warn!("{problem}");
        }
        *told = problem;
    }
}
