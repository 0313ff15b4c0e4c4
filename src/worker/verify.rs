//! The worker's own verify. It runs in the background, repairs drift, and rests between pages
//! so that it takes little of Postgres.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chrono::{DateTime, Utc};
use metrics::{counter, gauge};
use serde::Serialize;

use super::Shared;
use crate::lock::lock;
use crate::store::VerifyCursor;
use crate::verify::{self, Options};

/// The longest time between two looks whether a verify is due.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// The lease on a running verify: when its worker dies, another resumes it after this time.
const LEASE: Duration = Duration::from_secs(60);

/// After each page a scheduled verify rests nine times as long as the page took. So it uses
/// one connection a tenth of the time.
const REST: u32 = 9;

/// A requested verify repairs what may be wrong now, so it is faster: it uses
/// one connection half of the time.
const REQUESTED_REST: u32 = 1;

/// What a worker's own verify found and repaired.
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
        *lock(&self.verified) = Some(found);
    }
}

/// Verifies whenever the interval is over or a verify is requested. Runs until dropped.
pub async fn run(shared: Arc<Shared>) {
    let interval = Duration::from_secs(shared.settings.verify_interval_secs);
    let interval = (!interval.is_zero()).then_some(interval);
    let look_every = interval.map_or(LOOK_EVERY, |interval| LOOK_EVERY.min(interval / 2));
    let mut ticks = tokio::time::interval(look_every);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = shared.verify.notified() => {}
        }
        if shared.circuit.outage().is_none() {
            verify_if_due(&shared, interval, REST).await;
        }
    }
}

/// For a drain: runs a verify if one is requested. Returns whether it ran.
pub async fn once_if_requested(shared: &Shared) -> bool {
    verify_if_due(shared, None, 0).await
}

/// One worker verifies at a time, under a lease; if it dies, another resumes at its cursor.
/// Returns whether this worker ran the verify.
async fn verify_if_due(shared: &Shared, interval: Option<Duration>, rest: u32) -> bool {
    let (store, version) = shared.store_and_version();
    let begun = store.begin_verify(version, interval, LEASE).await;
    // If Postgres is unavailable, the claim loop meets the same outage and logs it.
    let Ok(Some(begun)) = begun else {
        return false;
    };
    let options = Options {
        rest: match begun.is_requested {
            true => rest.min(REQUESTED_REST),
            false => rest,
        },
        from: Arc::new(Mutex::new(begun.from)),
        notice: Arc::new(|finding| tracing::info!(finding, "drift")),
        ..Options::repairing()
    };
    tokio::select! {
        () = verify_from(shared, begun.number, &options) => {}
        never = keep_recording_progress(shared, begun.number, &options.from) => match never {},
    }
    true
}

/// Records the progress of the verify, and renews its lease.
async fn keep_recording_progress(
    shared: &Shared,
    number: i64,
    cursor: &Mutex<VerifyCursor>,
) -> Infallible {
    let (store, version) = shared.store_and_version();
    loop {
        tokio::time::sleep(LEASE / 4).await;
        let cursor = *lock(cursor);
        let recorded = store.record_verify(version, number, cursor, LEASE).await;
        if let Err(error) = recorded {
            tracing::debug!(%error, "could not record verify progress");
        }
    }
}

async fn verify_from(shared: &Shared, number: i64, options: &Options) {
    let report = match verify::run(&shared.pipeline.serving, options).await {
        Ok(report) => report,
        Err(error) => {
            // The lease expires, and a worker resumes from the recorded cursor.
            tracing::warn!(%error, "could not verify the index");
            return;
        }
    };
    let (store, version) = shared.store_and_version();
    if let Err(error) = store.end_verify(version, number).await {
        tracing::debug!(%error, "could not record the end of the verify");
    }
    shared.publish_drift(&report);
    let (points, drift) = (report.points, report.drift());
    if drift > 0 {
        tracing::warn!(
            points,
            drift,
            repaired = report.repaired,
            "verify ended, drift found"
        );
        // The repair may have put notes into the outbox.
        shared.wake.notify_one();
    } else {
        tracing::info!(points, "verify ended, the index equals Postgres");
    }
}
