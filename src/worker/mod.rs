//! The worker claims notes that changed, and makes their chunks, vectors and points equal to
//! what their rows say now.
//!
//! - The main loop: `claim_loop`, `batch_limit`.
//! - The claim: `claim`, `turns` and `walk` (which rows come next), `lease`.
//! - The way of a batch: `batch`, `plan`, `embedding`, `points`, `pooled`, `access`.
//! - Failures: `blame`, `retry`, `storage_circuit`, `lost_transactions`, `unacked`.
//! - In the background: `upkeep`, `clock`, `tidy`, `verify`, `watch_served`.
//!
//! A failure that no note is to blame for opens the storage circuit: in `batch`, `claim`, `shared`
//! and `watch_served`.

mod access;
mod batch;
mod batch_limit;
mod blame;
mod claim;
mod claim_loop;
mod clock;
mod embedding;
mod lease;
mod lost_transactions;
mod plan;
mod points;
mod pooled;
mod retry;
mod shared;
mod stage;
mod storage_circuit;
mod tidy;
mod totals;
mod turns;
mod unacked;
mod uncommitted;
mod upkeep;
mod verify;
mod walk;
mod watch_served;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

pub use plan::{HashedChunk, hashed_chunks};
pub use stage::{Breakpoint, Checkpoint};
pub use storage_circuit::{Outage, StorageCircuit};
pub use totals::{Report, Totals};
pub use verify::Verified;

use crate::chunk::NoteChunker;
use crate::config;
use crate::embed::provider::Provider;
use crate::lock::lock;
use crate::serving::Serving;
use crate::store::{self, Version};
use claim_loop::ClaimLoop;
use shared::{Drain, Shared};

/// Releasing the leases takes a moment, unless Postgres is unavailable. Then they expire.
const RELEASE_LIMIT: Duration = Duration::from_secs(5);

/// What a worker needs: Postgres, the index, the provider and the chunker.
#[derive(Clone)]
pub struct Pipeline {
    /// Postgres, and the index that ELF derives from it.
    pub serving: Serving,
    /// Texts → vectors.
    pub provider: Arc<Provider>,
    /// Text → chunks.
    pub chunker: Arc<NoteChunker>,
    /// The embedding version that this worker keeps in step.
    pub version: Version,
    /// Put before every chunk that is embedded.
    pub document_prefix: String,
}

/// One process's share of the work.
pub struct Worker {
    shared: Arc<Shared>,
}

/// Why a worker did not do all that it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// `--once` waits for the end of an outage no longer than the grace period.
    #[error("{0}; the remaining notes stay in the outbox: run it again when the outage is over")]
    Outage(String),
    /// A signal ended `--once` before it knew the outbox to be empty.
    #[error(
        "stopped before the outbox was empty; what is done is kept, the remaining notes stay in the \
         outbox: run it again"
    )]
    Stopped,
}

impl Worker {
    /// A worker that has not begun. Call [`crate::serving::register_or_check_version`] before,
    /// once.
    pub fn new(pipeline: Pipeline, settings: &config::Worker, outbox: &config::Outbox) -> Self {
        let shared = Shared {
            pipeline,
            settings: settings.clone(),
            keep_done: Duration::from_secs(outbox.retention_secs),
            holder: store::holder(),
            wake: Arc::new(Notify::new()),
            circuit: StorageCircuit::default(),
            totals: Totals::default(),
            leases: lease::ActiveLeases::default(),
            unacked: unacked::UnackedUpserts::default(),
            uncommitted: uncommitted::uncommitted_vectors(),
            watch: lost_transactions::Watch::default(),
            verify: Notify::new(),
            verified: Mutex::default(),
            upkeep: watch::Sender::new(None),
            breakpoint: None,
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Has `breakpoint` called at every checkpoint of every batch.
    pub fn with_breakpoint(mut self, breakpoint: Breakpoint) -> Self {
        let shared =
            Arc::get_mut(&mut self.shared).expect("a worker that has not begun has a single owner");
        shared.breakpoint = Some(breakpoint);
        self
    }

    /// What this worker has done so far.
    pub fn totals(&self) -> Report {
        self.shared.totals.report()
    }

    /// The name of this worker in the leases that it holds.
    pub fn holder(&self) -> &str {
        &self.shared.holder
    }

    /// Batches between claim and ack.
    pub fn in_flight(&self) -> u64 {
        self.shared.totals.in_flight()
    }

    /// How old changes were when they became searchable, since the last call.
    pub fn take_ages(&self) -> Vec<Duration> {
        self.shared.totals.take_ages()
    }

    /// The result of this worker's last verify; `None` if it has not run one.
    pub fn verified(&self) -> Option<Verified> {
        lock(&self.shared.verified).clone()
    }

    /// Waits until this worker holds the upkeep lease.
    pub async fn wait_for_upkeep_lease(&self) {
        let mut upkeep = self.shared.upkeep.subscribe();
        // The sender lives as long as the worker.
        let _ = upkeep.wait_for(|until| upkeep::holds_lease(*until)).await;
    }

    /// Whether this worker does the upkeep.
    pub fn holds_upkeep_lease(&self) -> bool {
        upkeep::holds_lease(*self.shared.upkeep.borrow())
    }

    /// The outage of Postgres or the index, if there is one. For `/readyz`.
    pub fn outage(&self) -> Option<Outage> {
        self.shared.circuit.outage()
    }

    /// Works until `stop`, then lets batches in flight end within the grace period.
    pub async fn run(&self, stop: CancellationToken) {
        let listening = self.shared.settings.listen.then(|| {
            let store = self.shared.pipeline.serving.store.clone();
            let wake = self.shared.wake.clone();
            in_the_background(async move { store.listen(wake).await })
        });
        let expiring = in_the_background(upkeep::run(self.shared.clone()));
        let verifying = in_the_background(verify::run(self.shared.clone()));
        let mut batches = JoinSet::new();
        ClaimLoop::new(&self.shared, &mut batches, &stop, None)
            .run()
            .await
            .ok();
        drop((listening, expiring, verifying));
        let released = upkeep::release(&self.shared);
        let _ = tokio::time::timeout(RELEASE_LIMIT, released).await;
        self.finish(batches).await;
    }

    /// Works until no note is due, except those that other workers have leased. A `stop` before that
    /// is an error.
    pub async fn drain(&self, stop: CancellationToken) -> Result<(), WorkerError> {
        let mut batches = JoinSet::new();
        upkeep::once(&self.shared).await;
        let outcome = loop {
            let outcome = ClaimLoop::new(&self.shared, &mut batches, &stop, Some(Drain))
                .run()
                .await;
            // The verify may have put notes into the outbox: this drain indexes them too.
            if outcome.is_err() || !verify::once_if_requested(&self.shared).await {
                break outcome;
            }
        };
        self.finish(batches).await;
        outcome
    }

    /// Waits for the batches in flight, and releases the leases of those that do not end
    /// within the grace period.
    async fn finish(&self, mut batches: JoinSet<()>) {
        let grace = Duration::from_secs(self.shared.settings.grace_secs.into());
        if tokio::time::timeout(grace, ended(&mut batches))
            .await
            .is_err()
        {
            tracing::warn!(
                ?grace,
                "batches in flight did not end within the grace period, releasing their leases"
            );
        }
        // First the batches end: none of them may write a note whose lease is released.
        batches.shutdown().await;
        // Leases that cannot be released expire.
        let released = async {
            self.shared.leases.release_all(&self.shared).await;
            unacked::requeue_lost(&self.shared).await
        };
        let _ = tokio::time::timeout(RELEASE_LIMIT, released).await;
        if !self.shared.unacked.is_empty() {
            tracing::warn!(
                "Postgres did not take back notes that were being written; if another worker has \
                 taken them over, `elf verify --repair` removes the points that are left of them"
            );
        }
    }
}

async fn ended(batches: &mut JoinSet<()>) {
    while batches.join_next().await.is_some() {}
}

/// Runs `work` until the returned handle is dropped, also when the caller drops the
/// worker's own future.
fn in_the_background(work: impl Future<Output = ()> + Send + 'static) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(work))
}
