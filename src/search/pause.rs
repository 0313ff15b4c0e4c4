//! A part of a search that failed is left out for a while: otherwise each search would wait for it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::lock::lock;

/// Whether a part is left out.
#[derive(Default)]
pub struct Pause {
    until: Mutex<Option<Instant>>,
    is_asking: AtomicBool,
}

impl Pause {
    /// Leaves the part out from now on, for `time`.
    pub fn begin(&self, time: Duration) {
        *lock(&self.until) = Some(Instant::now() + time);
    }

    /// One search has failed, which says nothing of others. Leaves the part out for `time` unless it
    /// `works`: that asks it something of no search. Does not wait for the answer.
    pub fn begin_unless(
        self: &Arc<Self>,
        works: impl Future<Output = bool> + Send + 'static,
        time: Duration,
    ) {
        if self.is_asking.swap(true, Ordering::Relaxed) {
            return;
        }
        let pause = self.clone();
        tokio::spawn(async move {
            if !works.await {
                pause.begin(time);
            }
            pause.is_asking.store(false, Ordering::Relaxed);
        });
    }

    pub fn is_on(&self) -> bool {
        lock(&self.until).is_some_and(|until| Instant::now() < until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_part_is_left_out_only_if_it_does_not_work() {
        let pause = Arc::new(Pause::default());
        let minute = Duration::from_secs(60);
        for (works, is_on) in [(true, false), (false, true)] {
            pause.begin_unless(std::future::ready(works), minute);
            while pause.is_asking.load(Ordering::Relaxed) {
                tokio::task::yield_now().await;
            }
            assert_eq!(pause.is_on(), is_on);
        }
    }
}
