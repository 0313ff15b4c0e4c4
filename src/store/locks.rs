//! Whether ELF waits for locks of other sessions, and who holds them.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use metrics::gauge;
use serde::Serialize;
use tokio::time::sleep;

use super::{Store, StoreError};
use crate::lock::lock;

/// A statement that has no answer for so long may wait for a lock.
const LOOK_AFTER: Duration = Duration::from_secs(2);

/// How often to look who holds the lock, while a statement has no answer.
const LOOK_EVERY: Duration = Duration::from_secs(3);

/// What was seen is shown for so long: between two tries of a worker no statement waits.
const SHOWN: Duration = Duration::from_secs(30);

/// A statement of ELF that waits for a lock of another session.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LockWait {
    /// What is locked: a table, or what else Postgres calls it.
    pub on: String,
    /// When the wait began, by the clock of Postgres.
    pub since: DateTime<Utc>,
    /// The sessions that hold the lock, or wait for it before ELF.
    pub held_by: String,
}

/// What this process has seen.
#[derive(Debug, Default)]
pub(super) struct Locks(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    /// Operations without an answer that have looked.
    lookers: usize,
    looked: Option<Instant>,
    /// The last look that found a wait.
    waits: Vec<LockWait>,
    found: Option<Instant>,
}

impl Store {
    /// ELF's statements that wait for a lock in this database, of this process and of others, the longest
    /// wait first.
    pub async fn lock_waits(&self) -> Result<Vec<LockWait>, StoreError> {
        let waits =
            sqlx::query_file_as!(LockWait, "sql/queries/lock_waits.sql").fetch_all(&self.control);
        // Not watched: a look must not lead to another one.
        match tokio::time::timeout(LOOK_EVERY, waits).await {
            Ok(waits) => Ok(waits?),
            Err(_) => Err(StoreError::Unavailable("no answer about locks".into())),
        }
    }

    /// The waits that this process saw lately.
    pub fn recent_lock_waits(&self) -> Vec<LockWait> {
        self.locks.recent()
    }

    /// Waits for `work`, and looks at the locks when it takes long.
    pub(super) async fn watching_locks<T>(&self, work: impl Future<Output = T>) -> T {
        tokio::select! {
            done = work => done,
            never = self.keep_looking() => match never {},
        }
    }

    async fn keep_looking(&self) -> Infallible {
        sleep(LOOK_AFTER).await;
        let _looking = Looking::begin(&self.locks);
        loop {
            // An error is harmless: only messages and metrics depend on the answer.
            if self.locks.is_due()
                && let Ok(waits) = self.lock_waits().await
            {
                self.locks.found(waits);
            }
            sleep(LOOK_EVERY).await;
        }
    }
}

/// Counts an operation that looks, until it is dropped.
struct Looking<'a>(&'a Arc<Locks>);

impl<'a> Looking<'a> {
    fn begin(locks: &'a Arc<Locks>) -> Self {
        lock(&locks.0).lookers += 1;
        Self(locks)
    }
}

impl Drop for Looking<'_> {
    fn drop(&mut self) {
        let mut seen = lock(&self.0.0);
        seen.lookers -= 1;
        if seen.lookers == 0 {
            show(&[]);
        }
    }
}

impl Locks {
    /// Whether no operation of this process has just looked.
    fn is_due(&self) -> bool {
        let mut seen = lock(&self.0);
        let is_due = seen.looked.is_none_or(|at| at.elapsed() >= LOOK_EVERY / 2);
        if is_due {
            seen.looked = Some(Instant::now());
        }
        is_due
    }

    fn found(&self, waits: Vec<LockWait>) {
        let mut seen = lock(&self.0);
        show(&waits);
        if waits.is_empty() {
            return;
        }
        let is_news = seen.found.is_none_or(|at| at.elapsed() >= SHOWN)
            || seen.waits.first().map(|wait| &wait.on) != waits.first().map(|wait| &wait.on);
        if is_news && let Some(LockWait { on, held_by, .. }) = waits.first() {
            tracing::warn!(on, held_by, "waiting for a lock");
        }
        seen.found = Some(Instant::now());
        seen.waits = waits;
    }

    fn recent(&self) -> Vec<LockWait> {
        let seen = lock(&self.0);
        match seen.found {
            Some(at) if at.elapsed() < SHOWN => seen.waits.clone(),
            _ => Vec::new(),
        }
    }

    /// What Postgres said about a lock, and who holds it.
    pub(super) fn explain(&self, reason: String) -> String {
        match self.recent().first() {
            Some(LockWait { on, held_by, .. }) => {
                format!("{reason}: {held_by} holds a lock on {on}")
            }
            None => reason,
        }
    }
}

fn show(waits: &[LockWait]) {
    let longest = waits.iter().map(|wait| wait.since).min();
    let secs = longest.and_then(|since| (Utc::now() - since).to_std().ok());
    gauge!("elf_postgres_lock_waits").set(waits.len() as f64);
    gauge!("elf_postgres_lock_wait_seconds").set(secs.map_or(0.0, |time| time.as_secs_f64()));
}
