//! The daemon's own verify: now and then, mending, and so slowly that nobody notices.

use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use chrono::{DateTime, Utc};
use metrics::{counter, gauge};
use serde::Serialize;

use super::Shared;
use crate::verify::{self, Options};

/// How often at most to look whether it is time.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// Rests nine times as long as it works: a tenth of one connection.
const REST: u32 = 9;

/// What a worker's own verify found, and mended.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[expect(missing_docs, reason = "the counts are those of `verify::Report`")]
pub struct Verified {
    /// When it ended.
    pub at: DateTime<Utc>,
    pub missing: u64,
    pub stale: u64,
    pub orphaned: u64,
    pub inconsistent: u64,
    pub repaired: u64,
}

impl Shared {
    pub(super) fn verified(&self) -> MutexGuard<'_, Option<Verified>> {
        self.verified
            .lock()
            .expect("nobody panics while holding it")
    }

    fn publish_drift(&self, report: &verify::Report) {
        let found = Verified {
            at: Utc::now(),
            missing: report.missing,
            stale: report.stale,
            orphaned: report.orphaned,
            inconsistent: report.inconsistent,
            repaired: report.repaired,
        };
        gauge!("elf_drift", "kind" => "missing").set(found.missing as f64);
        gauge!("elf_drift", "kind" => "stale").set(found.stale as f64);
        gauge!("elf_drift", "kind" => "orphaned").set(found.orphaned as f64);
        gauge!("elf_drift", "kind" => "inconsistent").set(found.inconsistent as f64);
        gauge!("elf_verify_timestamp_seconds").set(found.at.timestamp() as f64);
        counter!("elf_drift_repaired_total").increment(found.repaired);
        *self.verified() = Some(found);
    }
}

/// Verifies whenever the interval is over. Runs until dropped.
pub async fn run(shared: Arc<Shared>) {
    let interval = Duration::from_secs(shared.settings.verify_interval_secs);
    if interval.is_zero() {
        return;
    }
    let mut ticks = tokio::time::interval(LOOK_EVERY.min(interval / 2));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if shared.gate.outage().is_none() {
            verify_if_due(&shared, interval).await;
        }
    }
}

/// One worker of all does it; if that one dies, another does when the next is due.
async fn verify_if_due(shared: &Shared, interval: Duration) {
    let tools = &shared.tools;
    let due = tools
        .store
        .begin_sweep(&tools.version.name, interval)
        .await
        // The claim loop meets the same outage and says so.
        .unwrap_or(false);
    if !due {
        return;
    }
    let options = Options {
        rest: REST,
        notice: Arc::new(|finding| tracing::info!(finding, "drift")),
        ..Options::repairing()
    };
    match verify::run(&tools.store, &tools.index, &tools.alias, &options).await {
        Ok(report) => {
            shared.publish_drift(&report);
            let (points, drift) = (report.points, report.drift());
            if drift > 0 {
                tracing::warn!(
                    points,
                    drift,
                    repaired = report.repaired,
                    "the index had drifted from Postgres"
                );
                // What was put into the outbox is due.
                shared.wake.notify_one();
            } else {
                tracing::info!(points, "the index is exactly what Postgres says");
            }
        }
        Err(error) => tracing::warn!(%error, "could not verify the index"),
    }
}
