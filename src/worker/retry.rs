//! How long to wait before a retry, and when to dead-letter.

use std::time::Duration;

use crate::backoff;
use crate::config;
use crate::store::Retry;

/// The retry of a note that failed for the `failures`-th time (the first is 1). `jitter` is 0
/// to 1.
pub fn after_failure(
    settings: &config::Worker,
    failures: u32,
    permanent: bool,
    jitter: f64,
) -> Retry {
    if permanent || failures >= settings.max_attempts {
        return Retry::Never;
    }
    let base = Duration::from_millis(settings.backoff_base_ms);
    let max = Duration::from_millis(settings.backoff_max_ms);
    Retry::After(backoff::delay(failures, base, max, jitter))
}

/// How long to wait before Postgres and the index are tried again, after this many outages in a
/// row.
pub fn pause(settings: &config::Worker, openings: u32) -> Duration {
    let base = Duration::from_millis(settings.backoff_base_ms.min(1_000));
    backoff::delay(openings, base, Duration::from_secs(15), rand::random())
}
