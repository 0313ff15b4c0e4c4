//! Keeping leases alive while a batch is on its way, and giving them back.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::task::AbortHandle;
use uuid::Uuid;

use super::{Shared, WorkerContext};
use crate::registry::IndexContext;
use crate::store::Claim;

/// How long a note is left alone that an application is deleting.
const DEFERRED: Duration = Duration::from_millis(500);

/// The notes of the batches in flight that are not settled yet, by token: those
/// whose leases are kept alive, and given back in the end.
#[derive(Debug, Default)]
pub struct ActiveLeases {
    claims: Mutex<HashMap<i64, Leased>>,
    /// When the last of the notes are due again that wait for points without an answer.
    late: Mutex<Option<Instant>>,
}

#[derive(Debug, Default)]
struct Leased {
    unsettled: HashSet<Uuid>,
    /// Notes whose points are on their way to the index.
    sending: HashSet<Uuid>,
    /// Notes of which it did not answer once: those points may still come.
    unanswered: HashSet<Uuid>,
}

impl ActiveLeases {
    /// Gives back what is still leased.
    pub async fn release_all(&self, shared: &Shared) {
        let tokens: Vec<i64> = self.lock().keys().copied().collect();
        for token in tokens {
            self.release(shared, token).await;
        }
    }

    /// Gives back what is still leased under `token`. Points that were sent without an answer
    /// may come to the index late, after those of the next claim: their notes stay leased to
    /// no worker for as long as after a kill.
    pub async fn release(&self, shared: &Shared, token: i64) {
        let leased = self.lock().remove(&token).unwrap_or_default();
        let (sent, unsent): (Vec<Uuid>, Vec<Uuid>) = leased
            .unsettled
            .into_iter()
            .partition(|note| leased.sending.contains(note) || leased.unanswered.contains(note));
        if !sent.is_empty() {
            let lease = shared.settings.lease();
            defer(shared, token, &sent, lease).await;
            self.wait_for_late(lease);
        }
        release(shared, token, &unsent, Survived::Unknown).await;
    }

    /// Postgres was told that notes are due after `time`.
    pub fn wait_for_late(&self, time: Duration) {
        *self.late.lock().expect("no holder panics") = Some(Instant::now() + time);
    }

    /// When the last of them are due, told once.
    pub fn take_late(&self) -> Option<Instant> {
        self.late.lock().expect("no holder panics").take()
    }

    /// The batch has ended.
    pub fn forget(&self, token: i64) {
        self.lock().remove(&token);
    }

    /// These have their outcome: a heartbeat would only lease them to nobody.
    pub fn settle(&self, token: i64, notes: &[Uuid]) {
        self.each(token, notes, |leased, note| {
            leased.unsettled.remove(&note);
        });
    }

    /// The points of these are on their way.
    pub fn sending(&self, token: i64, notes: &[Uuid]) {
        self.each(token, notes, |leased, note| {
            leased.sending.insert(note);
        });
    }

    /// They are there, or the index did not take them, or it did not answer.
    pub fn sent(&self, token: i64, notes: &[Uuid], is_answered: bool) {
        self.each(token, notes, |leased, note| {
            leased.sending.remove(&note);
            if !is_answered {
                leased.unanswered.insert(note);
            }
        });
    }

    /// Those of which the index did not answer once, though it did later.
    pub fn unanswered(&self, token: i64, notes: &[Uuid]) -> Vec<Uuid> {
        let claims = self.lock();
        let unanswered = claims.get(&token).map(|leased| &leased.unanswered);
        let is_unanswered = |note: &&Uuid| unanswered.is_some_and(|all| all.contains(note));
        notes.iter().filter(is_unanswered).copied().collect()
    }

    fn each(&self, token: i64, notes: &[Uuid], change: impl Fn(&mut Leased, Uuid)) {
        if let Some(leased) = self.lock().get_mut(&token) {
            notes.iter().for_each(|note| change(leased, *note));
        }
    }

    fn unsettled(&self, token: i64) -> Vec<Uuid> {
        let unsettled = |leased: &Leased| Vec::from_iter(leased.unsettled.iter().copied());
        self.lock().get(&token).map(unsettled).unwrap_or_default()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<i64, Leased>> {
        self.claims
            .lock()
            .expect("nobody panics while holding the leases")
    }
}

/// Extends the leases of a batch until it is dropped.
pub struct Heartbeat {
    beating: AbortHandle,
}

impl Heartbeat {
    /// Begins to extend the leases of `claim`, four times per lease.
    pub fn start(shared: &Arc<Shared>, claim: &Claim) -> Self {
        let token = claim.token;
        let leased = Leased {
            unsettled: claim.note_ids().into_iter().collect(),
            ..Leased::default()
        };
        shared.in_flight.lock().insert(token, leased);
        let beating = tokio::spawn({
            let shared = shared.clone();
            async move {
                let lease = shared.settings.lease();
                loop {
                    tokio::time::sleep(lease / 4).await;
                    let version = &shared.context.version.name;
                    let notes = shared.in_flight.unsettled(token);
                    let beat = shared
                        .context
                        .stores
                        .store
                        .extend(version, token, &notes, lease);
                    // A beat that is not answered must not keep the next one from coming in time.
                    match tokio::time::timeout(lease / 3, beat).await {
                        Ok(Ok(())) => {}
                        Ok(Err(error)) => {
                            tracing::debug!(%error, token, "could not extend leases");
                        }
                        Err(_) => tracing::debug!(token, "leases were not extended in time"),
                    }
                }
            }
        });
        Self {
            beating: beating.abort_handle(),
        }
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.beating.abort();
    }
}

/// Whether a worker that claimed a note is known to have survived it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Survived {
    /// It read the note and cut it: claims that were lost before were not lost in a row.
    Yes,
    /// It stopped before, or another part of the batch stopped it.
    Unknown,
}

/// Gives leases back. When that fails they run out by themselves.
pub async fn release(shared: &Shared, token: i64, notes: &[Uuid], survived: Survived) {
    shared.in_flight.settle(token, notes);
    let WorkerContext {
        stores: IndexContext { store, .. },
        version,
        ..
    } = &shared.context;
    let survived = survived == Survived::Yes;
    if let Err(error) = store.release(&version.name, token, notes, survived).await {
        tracing::debug!(%error, token, "could not give leases back; they will run out");
    }
}

/// Leaves notes alone for a moment whose rows an application holds: given back at once,
/// they would be claimed at once, again and again.
pub async fn defer_held(shared: &Shared, token: i64, notes: &[Uuid]) {
    defer(shared, token, notes, DEFERRED).await;
}

async fn defer(shared: &Shared, token: i64, notes: &[Uuid], time: Duration) {
    shared.in_flight.settle(token, notes);
    let version = &shared.context.version.name;
    let store = &shared.context.stores.store;
    if let Err(error) = store.defer(version, token, notes, time).await {
        tracing::debug!(%error, token, "could not shorten leases; they will run out");
    }
}
