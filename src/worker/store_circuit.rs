//! Whether Postgres and the index can be worked with.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use chrono::{DateTime, Utc};

/// Open while the stores answer. Said once per change, not once per attempt.
#[derive(Debug, Default)]
pub struct StoreCircuit {
    outage: Mutex<Option<Outage>>,
    /// Closings since a batch went through: what a check finds in order may still
    /// not let a batch pass, and is then tried less and less often.
    openings: AtomicU32,
}

/// A store that is away, or not as it must be.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Outage {
    /// What failed.
    pub reason: String,
    /// Since when.
    pub since: DateTime<Utc>,
}

impl StoreCircuit {
    /// The outage, if there is one.
    pub fn outage(&self) -> Option<Outage> {
        self.lock().clone()
    }

    /// Something failed that no note is to blame for: claims pause.
    pub fn open(&self, reason: String) {
        self.openings.fetch_add(1, Ordering::Relaxed);
        let mut outage = self.lock();
        match &mut *outage {
            None => {
                tracing::warn!(reason, "paused: no attempts are spent, nothing is lost");
                *outage = Some(Outage {
                    reason,
                    since: Utc::now(),
                });
            }
            Some(known) => known.reason = reason,
        }
    }

    /// It works again.
    pub fn close(&self) {
        if let Some(outage) = self.lock().take() {
            let secs = (Utc::now() - outage.since).num_seconds();
            tracing::info!(secs, "resumed after: {}", outage.reason);
        }
    }

    /// A batch went through.
    pub fn succeeded(&self) {
        self.openings.store(0, Ordering::Relaxed);
    }

    /// How often it closed since a batch went through.
    pub fn openings(&self) -> u32 {
        self.openings.load(Ordering::Relaxed)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Outage>> {
        self.outage
            .lock()
            .expect("nobody panics while holding the gate")
    }
}
