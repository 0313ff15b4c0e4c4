//! Notes that a batch upserted and did not ack.
//!
//! If such a batch has lost its lease, the claim that took a note over may have deleted the
//! older points before the upsert. The points of the upsert then belong to no chunk, and no
//! outbox row is left to remove them. So the worker requeues the note (ADR 3).

use std::collections::{HashSet, VecDeque};
use std::sync::Mutex;
use std::time::Instant;

use uuid::Uuid;

use super::{Shared, WorkerContext};
use crate::registry::IndexContext;
use crate::store::StoreError;

/// The notes of ended batches. It is empty unless a batch failed, and holds at most the notes
/// of the batches that were in flight then: a worker claims nothing until it is empty again.
#[derive(Debug, Default)]
pub struct UnackedUpserts(Mutex<VecDeque<Unacked>>);

/// Notes of one batch.
#[derive(Debug, Clone)]
struct Unacked {
    token: i64,
    notes: Vec<Uuid>,
    /// The index may apply the upsert until then.
    lands_by: Instant,
}

impl UnackedUpserts {
    /// Remembers notes that were upserted under `token`. The index may apply the upsert until
    /// `lands_by`.
    pub fn add(&self, token: i64, notes: Vec<Uuid>, lands_by: Instant) {
        if !notes.is_empty() {
            self.lock().push_back(Unacked {
                token,
                notes,
                lands_by,
            });
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<Unacked>> {
        self.0.lock().expect("no holder panics")
    }
}

/// Requeues the notes of ended batches that a later claim has taken over. After an error the
/// worker still remembers them.
pub async fn requeue_lost(shared: &Shared) -> Result<(), StoreError> {
    loop {
        let Some(unacked) = shared.unacked.lock().front().cloned() else {
            return Ok(());
        };
        requeue_if_lost(shared, &unacked).await?;
        shared.unacked.lock().pop_front();
    }
}

async fn requeue_if_lost(shared: &Shared, unacked: &Unacked) -> Result<(), StoreError> {
    let Unacked {
        token,
        notes,
        lands_by,
    } = unacked;
    let WorkerContext {
        stores: IndexContext { store, .. },
        version,
        ..
    } = &shared.context;
    let held: HashSet<Uuid> = store
        .held(&version.name, *token, notes)
        .await?
        .into_iter()
        .collect();
    let lost: Vec<Uuid> = notes
        .iter()
        .filter(|n| !held.contains(n))
        .copied()
        .collect();
    if lost.is_empty() {
        return Ok(());
    }
    let pause = lands_by.saturating_duration_since(Instant::now());
    tracing::warn!(
        notes = lost.len(),
        token,
        "leases lost to another process, requeueing the notes"
    );
    metrics::counter!("elf_leases_lost_total").increment(lost.len() as u64);
    store.requeue_after(&version.name, &lost, pause).await?;
    if !pause.is_zero() {
        shared.leases.wait_for_unanswered(pause);
    }
    Ok(())
}
