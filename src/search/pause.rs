//! A part of a search that failed is left out for a while: otherwise each search would wait for it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Whether a part is left out.
#[derive(Default)]
pub struct Pause(Mutex<Option<Instant>>);

impl Pause {
    /// Leaves the part out from now on, for `time`.
    pub fn begin(&self, time: Duration) {
        *self.lock() = Some(Instant::now() + time);
    }

    pub fn is_on(&self) -> bool {
        self.lock().is_some_and(|until| Instant::now() < until)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
