//! Upserts of batches that ended without an ack and may have lost their lease.
//!
//! The claim that took over such a note may have deleted the older points before the upsert. The
//! points of the upsert then belong to no chunk, and no outbox row is left to remove them. So the
//! worker requeues the note: "Lost leases" in `docs/inside/decisions.md`.

use std::collections::{HashSet, VecDeque};
use std::sync::Mutex;
use std::time::Instant;

use metrics::counter;
use uuid::Uuid;

use super::Shared;
use crate::error_class::ErrorClass;
use crate::lock::lock;
use crate::store::StoreError;

/// The notes of ended batches that Postgres has neither acked, failed nor released under their token.
/// These are at most the notes of the batches that were in flight, because the worker claims nothing
/// until it has looked at each.
#[derive(Debug, Default)]
pub struct UnackedUpserts(Mutex<VecDeque<Unacked>>);

#[derive(Debug, Clone)]
struct Unacked {
    token: i64,
    notes: Vec<Uuid>,
    /// After this time the index applies no upsert of these notes any more.
    applied_by: Instant,
}

impl UnackedUpserts {
    /// Remembers notes that were upserted under `token`. The index may apply the upsert until
    /// `applied_by`.
    pub fn add(&self, token: i64, notes: Vec<Uuid>, applied_by: Instant) {
        if !notes.is_empty() {
            lock(&self.0).push_back(Unacked {
                token,
                notes,
                applied_by,
            });
        }
    }

    pub fn is_empty(&self) -> bool {
        lock(&self.0).is_empty()
    }
}

/// Requeues the notes that a later claim has taken over. After an error the worker still
/// remembers them.
pub async fn requeue_lost(shared: &Shared) -> Result<(), StoreError> {
    loop {
        let Some(unacked) = lock(&shared.unacked.0).front().cloned() else {
            return Ok(());
        };
        match requeue_if_lost(shared, &unacked).await {
            // A check or a trigger on the outbox rejects the rows. Trying for ever would stop all
            // claims.
            Err(error) if error.class() == ErrorClass::Item => tracing::warn!(
                %error,
                notes = unacked.notes.len(),
                "could not requeue notes whose leases were lost; the next verify removes what is \
                 left of them"
            ),
            requeued => requeued?,
        }
        lock(&shared.unacked.0).pop_front();
    }
}

async fn requeue_if_lost(shared: &Shared, unacked: &Unacked) -> Result<(), StoreError> {
    let Unacked { token, notes, .. } = unacked;
    let (store, version) = shared.store_and_version();
    let pause = unacked.applied_by.saturating_duration_since(Instant::now());
    // The next claim of a note that is still held comes after the upsert.
    let held = if pause.is_zero() {
        store.held(version, *token, notes).await?
    } else {
        shared.leases.wait_for_unanswered(pause);
        store.release(version, *token, notes, pause, false).await?
    };
    let held: HashSet<Uuid> = held.into_iter().collect();
    let is_lost = |note: &&Uuid| !held.contains(note);
    let lost: Vec<Uuid> = notes.iter().filter(is_lost).copied().collect();
    if !lost.is_empty() {
        store.requeue_after(version, &lost, pause).await?;
        report_lost(*token, &lost);
    }
    Ok(())
}

/// Logs and counts notes that were requeued because their lease was lost.
pub fn report_lost(token: i64, notes: &[Uuid]) {
    tracing::warn!(
        notes = notes.len(),
        token,
        "leases lost to another process, requeued the notes"
    );
    counter!("elf_leases_lost_total").increment(notes.len() as u64);
}
