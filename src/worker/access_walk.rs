//! Applies deletions and access labels while all batches wait for vectors.
//!
//! A worker whose batches all wait for vectors claims no new batch, for as long as the backlog
//! lasts. Meanwhile it walks over the due rows behind those batches, and does for their notes
//! what needs no text.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Shared;
use super::batch::{self, Extent};
use super::walk::Walk;

/// How long all batches must be in flight before the walk begins, and how long the walk
/// pauses after its last row.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The walk of one worker.
pub struct AccessWalk {
    walk: Walk,
    is_at_end: bool,
}

impl AccessWalk {
    /// A walk that has not begun.
    pub fn new() -> Self {
        Self {
            walk: Walk::new(Instant::now()),
            is_at_end: true,
        }
    }

    /// Waits until it is time for [`Self::step`].
    pub async fn is_due(&self) {
        if self.is_at_end {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Claims the next rows behind the last claim, and applies them.
    pub async fn step(&mut self, shared: &Arc<Shared>) {
        self.is_at_end = true;
        if shared.circuit.outage().is_some() {
            return;
        }
        match shared.claim(self.walk.due(Instant::now())).await {
            Some(claim) => {
                self.walk.took(claim.upto);
                self.is_at_end = false;
                batch::run(shared, claim, Extent::Access).await;
            }
            None => self.walk.ended(Instant::now()),
        }
    }
}
