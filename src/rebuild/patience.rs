//! Waiting for a store that is away.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::RebuildError;
use crate::backoff;
use crate::registry::StoresError;

/// How long a store may be away before a rebuild ends. What is done is kept.
pub(super) const PATIENCE: Duration = Duration::from_secs(600);

/// A store that is away, for all who wait for it: it is said once.
#[derive(Default)]
pub(super) struct Outage {
    waiting: AtomicU32,
}

impl Outage {
    /// Does it again and again as long as a store is away.
    pub(super) async fn sit_out<T, E, F>(&self, work: impl Fn() -> F) -> Result<T, RebuildError>
    where
        E: Into<StoresError>,
        F: Future<Output = Result<T, E>>,
    {
        let mut away: Option<(Instant, u32)> = None;
        loop {
            let error = match work().await.map_err(Into::into) {
                Ok(done) => {
                    if away.is_some() && self.waiting.fetch_sub(1, Ordering::Relaxed) == 1 {
                        tracing::info!("it is back; the rebuild goes on");
                    }
                    return Ok(done);
                }
                Err(error) if error.may_pass() => error,
                Err(error) => return Err(error.into()),
            };
            let (since, tries) = away.get_or_insert_with(|| {
                if self.waiting.fetch_add(1, Ordering::Relaxed) == 0 {
                    tracing::warn!(%error, "the rebuild waits, nothing is lost");
                }
                (Instant::now(), 0)
            });
            if since.elapsed() > PATIENCE {
                return Err(RebuildError::GaveUp {
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

/// The same for one who works alone.
pub(super) async fn patiently<T, E, F>(work: impl Fn() -> F) -> Result<T, RebuildError>
where
    E: Into<StoresError>,
    F: Future<Output = Result<T, E>>,
{
    Outage::default().sit_out(work).await
}
