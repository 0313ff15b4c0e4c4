//! Waits while Postgres or the vector engine is unavailable.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::RebuildError;
use crate::backoff;
use crate::serving::ServingError;

/// How long Postgres or the vector engine may be unavailable before a rebuild fails. The points
/// copied so far are kept.
pub(super) const OUTAGE_LIMIT: Duration = Duration::from_secs(600);

/// An outage that several ranges wait for: it is logged once.
#[derive(Default)]
pub(super) struct Outage {
    waiting: AtomicU32,
}

impl Outage {
    /// Repeats `work` while Postgres or the vector engine is unavailable.
    pub(super) async fn retry<T, E, F>(&self, work: impl Fn() -> F) -> Result<T, RebuildError>
    where
        E: Into<ServingError>,
        F: Future<Output = Result<T, E>>,
    {
        let mut outage: Option<(Instant, u32)> = None;
        loop {
            let error = match work().await.map_err(Into::into) {
                Ok(done) => {
                    if outage.is_some() && self.waiting.fetch_sub(1, Ordering::Relaxed) == 1 {
                        tracing::info!("storage reachable, resuming rebuild");
                    }
                    return Ok(done);
                }
                Err(error) if error.class().may_pass() => error,
                Err(error) => return Err(error.into()),
            };
            let (since, tries) = outage.get_or_insert_with(|| {
                if self.waiting.fetch_add(1, Ordering::Relaxed) == 0 {
                    tracing::warn!(%error, "storage unavailable, rebuild waits");
                }
                (Instant::now(), 0)
            });
            if since.elapsed() > OUTAGE_LIMIT {
                return Err(RebuildError::Unavailable {
                    reason: error.to_string(),
                });
            }
            *tries += 1;
            let pause = backoff::delay(
                *tries,
                Duration::from_millis(200),
                Duration::from_secs(5),
                rand::random(),
            );
            tokio::time::sleep(pause).await;
        }
    }
}

/// [`Outage::retry`] for a single task.
pub(super) async fn retry_unavailable<T, E, F>(work: impl Fn() -> F) -> Result<T, RebuildError>
where
    E: Into<ServingError>,
    F: Future<Output = Result<T, E>>,
{
    Outage::default().retry(work).await
}
