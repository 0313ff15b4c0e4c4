//! What the batches of one worker share: its pipeline, its settings, its leases and its circuit.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::{
    Breakpoint, Checkpoint, Pipeline, StorageCircuit, Totals, Verified, WorkerError, lease,
    lost_transactions, retry, unacked, uncommitted,
};
use crate::config;
use crate::serving;
use crate::store::Store;

/// The state that the batches of a worker share.
pub(super) struct Shared {
    pub(super) pipeline: Pipeline,
    pub(super) settings: config::Worker,
    pub(super) keep_done: Duration,
    /// Names this worker in the leases it holds.
    pub(super) holder: String,
    /// Notified when work may be due: after a commit, a finished batch, a lost connection.
    pub(super) wake: Arc<Notify>,
    pub(super) circuit: StorageCircuit,
    pub(super) totals: Totals,
    pub(super) leases: lease::ActiveLeases,
    pub(super) unacked: unacked::UnackedUpserts,
    pub(super) uncommitted: uncommitted::UncommittedVectors,
    pub(super) watch: lost_transactions::Watch,
    /// Notified when a verify may have been requested.
    pub(super) verify: Notify,
    pub(super) verified: Mutex<Option<Verified>>,
    /// Until when this worker is the one that expires notes, counts and cleans up.
    pub(super) upkeep: watch::Sender<Option<Instant>>,
    pub(super) breakpoint: Option<Breakpoint>,
}

/// Marks a run of `--once`, which ends when the outbox is empty.
#[derive(Clone, Copy)]
pub(super) struct Drain;

impl Shared {
    /// Postgres, and the name of the embedding version that this worker indexes.
    pub(super) fn store_and_version(&self) -> (&Store, &str) {
        (&self.pipeline.serving.store, &self.pipeline.version.name)
    }

    pub(super) async fn grace_after(&self, stop: &CancellationToken) {
        stop.cancelled().await;
        tokio::time::sleep(Duration::from_secs(self.settings.grace_secs.into())).await;
    }

    /// Waits until Postgres and the index are available; returns at once if they are.
    async fn wait_for_recovery(&self) {
        while self.circuit.outage().is_some() {
            tokio::time::sleep(retry::pause(&self.settings, self.circuit.openings())).await;
            match serving::ensure_ready(&self.pipeline.serving, &self.pipeline.version).await {
                Ok(()) => {
                    self.circuit.close();
                    self.verify.notify_one();
                }
                Err(error) => self.circuit.open(error.to_string()),
            }
        }
    }

    /// [`Self::wait_for_recovery`]; a drain waits for it no longer than its grace period.
    pub(super) async fn wait_for_storage(&self, drain: Option<Drain>) -> Result<(), WorkerError> {
        match drain {
            Some(Drain) => self.within_grace(self.wait_for_recovery()).await,
            None => {
                self.wait_for_recovery().await;
                Ok(())
            }
        }
    }

    /// Waits for the end of an outage, at most for the grace period.
    pub(super) async fn within_grace(
        &self,
        end: impl Future<Output = ()>,
    ) -> Result<(), WorkerError> {
        let grace = Duration::from_secs(self.settings.grace_secs.into());
        match (tokio::time::timeout(grace, end).await, self.outage()) {
            (Err(_), Some(reason)) => Err(WorkerError::Outage(reason)),
            _ => Ok(()),
        }
    }

    /// The reason why no note can be indexed now, if there is one.
    fn outage(&self) -> Option<String> {
        self.circuit
            .outage()
            .map(|outage| outage.reason)
            .or_else(|| Some(self.pipeline.provider.state().error()?.to_string()))
    }

    pub(super) async fn call_breakpoint(&self, checkpoint: Checkpoint) {
        if let Some(breakpoint) = &self.breakpoint {
            breakpoint(checkpoint).await;
        }
    }
}
