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

use super::{Pipeline, Shared};
use crate::error_class::ErrorClass;
use crate::serving::Serving;
use crate::store::StoreError;

/// The notes of ended batches whose claim no statement under their token has ended. It holds at
/// most the notes of the batches that were in flight: a worker claims nothing until it is empty
/// again.
#[derive(Debug, Default)]
pub struct UnackedUpserts(Mutex<VecDeque<Unacked>>);

/// Notes of one batch.
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
            self.lock().push_back(Unacked {
                token,
                notes,
                applied_by,
            });
        }
    }

    /// Whether no note is remembered.
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<Unacked>> {
        self.0.lock().expect("no holder panics")
    }
}

/// Requeues the notes that a later claim has taken over. After an error the worker still
/// remembers them.
pub async fn requeue_lost(shared: &Shared) -> Result<(), StoreError> {
    loop {
        let Some(unacked) = shared.unacked.lock().front().cloned() else {
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
        shared.unacked.lock().pop_front();
    }
}

async fn requeue_if_lost(shared: &Shared, unacked: &Unacked) -> Result<(), StoreError> {
    let Unacked { token, notes, .. } = unacked;
    let Pipeline {
        serving: Serving { store, .. },
        version,
        ..
    } = &shared.pipeline;
    let pause = unacked.applied_by.saturating_duration_since(Instant::now());
    // The next claim of a note that is still held comes after the upsert.
    let held = if pause.is_zero() {
        store.held(&version.name, *token, notes).await?
    } else {
        shared.leases.wait_for_unanswered(pause);
        store
            .release(&version.name, *token, notes, pause, false)
            .await?
    };
    let held: HashSet<Uuid> = held.into_iter().collect();
    let is_lost = |note: &&Uuid| !held.contains(note);
    let lost: Vec<Uuid> = notes.iter().filter(is_lost).copied().collect();
    if !lost.is_empty() {
        store.requeue_after(&version.name, &lost, pause).await?;
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
