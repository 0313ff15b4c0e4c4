//! Keeping leases alive while a batch is on its way, and giving them back.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::AbortHandle;
use uuid::Uuid;

use super::Shared;
use crate::store::Claim;

/// How long a note is left alone that an application is deleting.
const DEFERRED: Duration = Duration::from_millis(500);

/// The notes of the batches in flight that are not settled yet, by token: those
/// whose leases are kept alive, and given back in the end.
#[derive(Debug, Default)]
pub struct InFlight {
    claims: Mutex<HashMap<i64, HashSet<Uuid>>>,
}

impl InFlight {
    /// Gives back what is still leased.
    pub async fn release_all(&self, shared: &Shared) {
        let claims = std::mem::take(&mut *self.lock());
        for (token, notes) in claims {
            release(shared, token, &Vec::from_iter(notes)).await;
        }
    }

    /// These have their outcome: a heartbeat would only lease them to nobody.
    pub fn settle(&self, token: i64, notes: &[Uuid]) {
        if let Some(unsettled) = self.lock().get_mut(&token) {
            notes.iter().for_each(|note| {
                unsettled.remove(note);
            });
        }
    }

    fn unsettled(&self, token: i64) -> Vec<Uuid> {
        self.lock()
            .get(&token)
            .into_iter()
            .flatten()
            .copied()
            .collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<i64, HashSet<Uuid>>> {
        self.claims
            .lock()
            .expect("nobody panics while holding the leases")
    }
}

/// Extends the leases of a batch until it is dropped.
pub struct Heartbeat {
    shared: Arc<Shared>,
    token: i64,
    beating: AbortHandle,
}

impl Heartbeat {
    /// Begins to extend the leases of `claim`, four times per lease.
    pub fn start(shared: &Arc<Shared>, claim: &Claim) -> Self {
        let token = claim.token;
        shared
            .in_flight
            .lock()
            .insert(token, claim.note_ids().into_iter().collect());
        let beating = tokio::spawn({
            let shared = shared.clone();
            async move {
                let lease = shared.settings.lease();
                loop {
                    tokio::time::sleep(lease / 4).await;
                    let version = &shared.tools.version.name;
                    let notes = shared.in_flight.unsettled(token);
                    let beat = shared.tools.store.extend(version, token, &notes, lease);
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
            shared: shared.clone(),
            token,
            beating: beating.abort_handle(),
        }
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.beating.abort();
        self.shared.in_flight.lock().remove(&self.token);
    }
}

/// Gives leases back. When that fails they run out by themselves.
pub async fn release(shared: &Shared, token: i64, notes: &[Uuid]) {
    shared.in_flight.settle(token, notes);
    let version = &shared.tools.version.name;
    if let Err(error) = shared.tools.store.release(version, token, notes).await {
        tracing::debug!(%error, token, "could not give leases back; they will run out");
    }
}

/// Leaves notes alone for a moment that somebody else holds: given back at once,
/// they would be claimed at once, again and again.
pub async fn defer(shared: &Shared, token: i64, notes: &[Uuid]) {
    shared.in_flight.settle(token, notes);
    let version = &shared.tools.version.name;
    let store = &shared.tools.store;
    if let Err(error) = store.defer(version, token, notes, DEFERRED).await {
        tracing::debug!(%error, token, "could not shorten leases; they will run out");
    }
}
