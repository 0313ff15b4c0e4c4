//! Locks that a few lines hold.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks until the guard is dropped. Each holder leaves the data whole at every line, so what a
/// panic poisoned is used on.
pub fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
