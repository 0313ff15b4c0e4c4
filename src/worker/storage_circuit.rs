//! Whether claims pause because Postgres or the index is unavailable or misconfigured.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};

use crate::lock::lock;

/// Open during an outage: claims pause. Logged once per change, not once per attempt.
#[derive(Debug, Default)]
pub struct StorageCircuit {
    outage: Mutex<Option<Outage>>,
    /// How often it opened since a batch succeeded. Postgres or the index may pass the check and
    /// still fail every batch, so each opening in a row makes the pause longer.
    openings: AtomicU32,
    /// When it last opened or closed.
    changed: Mutex<Option<Instant>>,
}

/// An outage of Postgres or the index, or a wrong configuration of one of them.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Outage {
    /// As the log and `/readyz` say it.
    pub reason: String,
    /// When the circuit opened, by the clock of this machine.
    pub since: DateTime<Utc>,
}

impl StorageCircuit {
    /// The outage, if there is one.
    pub fn outage(&self) -> Option<Outage> {
        lock(&self.outage).clone()
    }

    /// Opens the circuit after a failure that no note is to blame for: claims pause.
    pub fn open(&self, reason: String) {
        self.openings.fetch_add(1, Ordering::Relaxed);
        self.record_change();
        let mut outage = lock(&self.outage);
        match &mut *outage {
            None => {
                tracing::warn!(reason, "claims paused");
                *outage = Some(Outage {
                    reason,
                    since: Utc::now(),
                });
            }
            Some(known) => known.reason = reason,
        }
    }

    /// Closes the circuit: Postgres and the index are available again.
    pub fn close(&self) {
        if let Some(outage) = lock(&self.outage).take() {
            let secs = (Utc::now() - outage.since).num_seconds();
            tracing::info!(reason = outage.reason, secs, "claims resumed");
            self.record_change();
        }
    }

    /// Records that a batch succeeded.
    pub fn succeeded(&self) {
        self.openings.store(0, Ordering::Relaxed);
    }

    /// How often it opened since a batch succeeded.
    pub fn openings(&self) -> u32 {
        self.openings.load(Ordering::Relaxed)
    }

    /// Whether there was an outage within this time.
    pub fn was_open_within(&self, time: Duration) -> bool {
        let changed = *lock(&self.changed);
        self.outage().is_some() || changed.is_some_and(|at| at.elapsed() < time)
    }

    fn record_change(&self) {
        *lock(&self.changed) = Some(Instant::now());
    }
}
