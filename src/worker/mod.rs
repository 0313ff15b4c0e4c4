//! The worker claims notes that changed, and makes their chunks, vectors and points equal to
//! what their rows say now.

mod access;
mod access_walk;
mod batch;
mod blame;
mod embedding;
mod expire;
mod lease;
mod plan;
mod pooled;
mod retry;
mod rollback;
mod store_circuit;
mod tidy;
mod totals;
mod uncommitted;
mod verify;
mod walk;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use metrics::{counter, histogram};
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

pub use plan::{HashedChunk, hashed_chunks};
pub use store_circuit::{Outage, StoreCircuit};
pub use totals::{Report, Totals};
pub use verify::Verified;

use crate::chunk::Chunker;
use crate::config;
use crate::embed::provider::Provider;
use crate::registry::{self, IndexContext};
use crate::store::{self, ClaimScope, Position, Version};
use access_walk::AccessWalk;
use batch::Extent;
use lease::Survived;
use walk::Walk;

/// Text claimed at once, so that a batch of long notes does not fill the memory.
const BATCH_BYTES: usize = 4 << 20;

/// Releasing the leases takes a moment, unless Postgres is unavailable. Then they expire.
const RELEASE_LIMIT: Duration = Duration::from_secs(5);

/// What a worker needs: both stores, the provider and the chunker.
#[derive(Clone)]
pub struct WorkerContext {
    /// Postgres and the index that it keeps in step.
    pub stores: IndexContext,
    /// Texts → vectors.
    pub provider: Arc<Provider>,
    /// Text → chunks.
    pub chunker: Arc<Chunker>,
    /// The embedding version that this worker keeps in step.
    pub version: Version,
    /// Put before every chunk that is embedded.
    pub document_prefix: String,
}

/// One process's share of the work.
pub struct Worker {
    shared: Arc<Shared>,
}

/// The state that the batches of a worker share.
struct Shared {
    context: WorkerContext,
    settings: config::Worker,
    keep_done: Duration,
    /// Names this worker in the leases it holds.
    holder: String,
    /// Notified when work may be due: after a commit, a finished batch, a lost connection.
    wake: Arc<Notify>,
    circuit: StoreCircuit,
    totals: Totals,
    in_flight: lease::ActiveLeases,
    uncommitted: uncommitted::UncommittedVectors,
    watch: rollback::Watch,
    /// Notified when a verify may have been requested.
    verify: Notify,
    verified: Mutex<Option<Verified>>,
    /// Whether this worker is the one that expires notes, counts and cleans up.
    upkeep: watch::Sender<bool>,
    breakpoint: Option<Breakpoint>,
}

/// The stages of a batch, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The leases are taken.
    Claimed,
    /// The rows are read and cut into chunks.
    Chunked,
    /// Every chunk has its vector.
    Embedded,
    /// Chunks and vectors are committed to Postgres.
    Committed,
    /// The index has the new points.
    Upserted,
    /// The index has deleted the old points.
    Pruned,
    /// The outbox rows are deleted.
    Acked,
}

impl Stage {
    /// Every stage, in order.
    pub const ALL: [Self; 7] = [
        Self::Claimed,
        Self::Chunked,
        Self::Embedded,
        Self::Committed,
        Self::Upserted,
        Self::Pruned,
        Self::Acked,
    ];
}

/// Called when a batch reaches a stage; the batch continues when it returns. A test
/// uses it to stop a worker between any two effects.
pub type Breakpoint = Arc<dyn Fn(Stage) -> BoxFuture<'static, ()> + Send + Sync>;

/// Why a worker stopped before it was told to.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// `--once` waits for the end of an outage no longer than the grace period.
    #[error("{0}; the remaining notes stay in the outbox: run it again when the outage is over")]
    Outage(String),
}

impl Worker {
    /// A worker that has not begun. Call [`registry::prepare`] before, once.
    pub fn new(context: WorkerContext, settings: &config::Worker, outbox: &config::Outbox) -> Self {
        let shared = Shared {
            context,
            settings: settings.clone(),
            keep_done: Duration::from_secs(outbox.retention_secs),
            holder: store::holder(),
            wake: Arc::new(Notify::new()),
            circuit: StoreCircuit::default(),
            totals: Totals::default(),
            in_flight: lease::ActiveLeases::default(),
            uncommitted: uncommitted::UncommittedVectors::default(),
            watch: rollback::Watch::default(),
            verify: Notify::new(),
            verified: Mutex::default(),
            upkeep: watch::Sender::new(false),
            breakpoint: None,
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Has `breakpoint` called at every stage of every batch.
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
        self.shared.verified().clone()
    }

    /// Waits until this worker holds the upkeep lease.
    pub async fn upkeep(&self) {
        let mut upkeep = self.shared.upkeep.subscribe();
        // The sender lives as long as the worker.
        let _ = upkeep.wait_for(|has_upkeep| *has_upkeep).await;
    }

    /// The outage of Postgres or the index, if there is one. For `/readyz`.
    pub fn outage(&self) -> Option<Outage> {
        self.shared.circuit.outage()
    }

    /// Works until `stop`, then lets batches in flight end within the grace period.
    pub async fn run(&self, stop: CancellationToken) {
        let listening = self.shared.settings.listen.then(|| {
            in_the_background(store::listen(
                self.shared.context.stores.store.pool().clone(),
                self.shared.wake.clone(),
            ))
        });
        let expiring = in_the_background(expire::run(self.shared.clone()));
        let verifying = in_the_background(verify::run(self.shared.clone()));
        let mut batches = JoinSet::new();
        self.claim_until(&mut batches, &stop, None).await.ok();
        drop((listening, expiring, verifying));
        self.finish(batches).await;
    }

    /// Works until no note is due, except those that other workers have leased.
    pub async fn drain(&self, stop: CancellationToken) -> Result<(), WorkerError> {
        let mut batches = JoinSet::new();
        expire::once(&self.shared).await;
        let outcome = loop {
            let outcome = self.claim_until(&mut batches, &stop, Some(Drain)).await;
            // The verify may have put notes into the outbox: this drain indexes them too.
            if outcome.is_err() || !verify::once_if_requested(&self.shared).await {
                break outcome;
            }
        };
        self.finish(batches).await;
        outcome
    }

    /// The main loop. With `drain` it ends when no note is due, and with an error when an
    /// outage lasts longer than the grace period.
    async fn claim_until(
        &self,
        batches: &mut JoinSet<()>,
        stop: &CancellationToken,
        drain: Option<Drain>,
    ) -> Result<(), WorkerError> {
        let shared = &self.shared;
        let permits = Arc::new(Semaphore::new(shared.settings.concurrency));
        let poll = Duration::from_millis(shared.settings.poll_interval_ms);
        let mut walk: Option<Walk> = None;
        let mut access_walk = AccessWalk::new();
        let mut by_itself = false;
        // Biased, here and below: an unbiased select could claim once more after the stop.
        loop {
            let free = async {
                let permit = permits.clone().acquire_owned().await;
                permit.expect("the semaphore is never closed")
            };
            let permit = tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                permit = free => permit,
                () = access_walk.is_due() => {
                    tokio::select! {
                        biased;
                        () = Box::pin(access_walk.step(shared)) => continue,
                        () = shared.grace_after(stop) => return Ok(()),
                    }
                }
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                recovered = shared.stores_recovered(drain) => recovered?,
            }
            if by_itself && !batches.is_empty() {
                drop(permit);
                tokio::select! {
                    biased;
                    () = stop.cancelled() => return Ok(()),
                    _ = batches.join_next() => continue,
                    () = access_walk.is_due() => {}
                }
                tokio::select! {
                    biased;
                    () = Box::pin(access_walk.step(shared)) => continue,
                    () = shared.grace_after(stop) => return Ok(()),
                }
            }
            // While the provider is unavailable, the worker still indexes what needs no new
            // vector.
            let provider_works = shared.context.provider.state().error().is_none();
            let after = match provider_works {
                true => {
                    walk = None;
                    None
                }
                false => walk
                    .get_or_insert_with(|| Walk::new(Instant::now()))
                    .after(Instant::now()),
            };
            // Read before the claim: a batch that ends after the claim may release notes that
            // the claim did not see.
            let is_alone = permits.available_permits() + 1 == shared.settings.concurrency;
            // Not cancelled midway: Postgres could have leased notes to this worker, and the
            // worker would not know. A stop waits for the claim as long as for a batch.
            let claimed = tokio::select! {
                biased;
                claimed = shared.claim(after) => claimed,
                () = shared.grace_after(stop) => return Ok(()),
            };
            match claimed {
                Some(claim) => {
                    by_itself = blame::is_suspect(&claim);
                    if by_itself && !is_alone {
                        // The worker claims it again when nothing else is in flight.
                        let notes = claim.note_ids();
                        lease::release(shared, claim.token, &notes, Survived::Unknown).await;
                        continue;
                    }
                    if let Some(walk) = &mut walk {
                        walk.took(claim.upto);
                    }
                    // Ended batches stay in the set until they are joined.
                    while batches.try_join_next().is_some() {}
                    let shared = shared.clone();
                    batches.spawn(async move {
                        batch::run(&shared, claim, Extent::Whole).await;
                        drop(permit);
                        // New rows of these notes woke the worker while it could not claim
                        // them.
                        shared.wake.notify_one();
                    });
                    continue;
                }
                None => drop(permit),
            }
            let stores_work = shared.circuit.outage().is_none();
            if stores_work && let Some(walk) = &mut walk {
                walk.ended(Instant::now());
            }
            if drain.is_some() && is_alone && stores_work {
                if provider_works {
                    // Notes whose points the index did not confirm are due after that time.
                    let Some(late) = shared.in_flight.take_unanswered_due() else {
                        return Ok(());
                    };
                    tokio::select! {
                        () = stop.cancelled() => return Ok(()),
                        () = tokio::time::sleep_until(late.into()) => continue,
                    }
                }
                tokio::select! {
                    () = stop.cancelled() => return Ok(()),
                    waited = shared.within_grace(shared.context.provider.ready()) => waited?,
                }
                continue;
            }
            // `notify_one` stores one wake-up, so a notification since the claim is not lost.
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                () = shared.wake.notified() => {}
                () = shared.context.provider.ready(), if !provider_works => {}
                () = tokio::time::sleep(poll) => {}
            }
        }
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
        let released = self.shared.in_flight.release_all(&self.shared);
        let _ = tokio::time::timeout(RELEASE_LIMIT, released).await;
    }
}

/// Waits until every batch has ended.
async fn ended(batches: &mut JoinSet<()>) {
    while batches.join_next().await.is_some() {}
}

/// Runs `work` until the returned handle is dropped, also when the caller drops the
/// worker's own future.
fn in_the_background(work: impl Future<Output = ()> + Send + 'static) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(work))
}

/// Marks a run of `--once`, which ends when the outbox is empty.
#[derive(Clone, Copy)]
struct Drain;

impl Shared {
    /// Claims a batch of the notes that are due behind `after`. `None` when none is due, or
    /// Postgres is unavailable.
    async fn claim(&self, after: Option<Position>) -> Option<store::Claim> {
        if let Err(error) = rollback::check_tokens_after_reconnect(self).await {
            self.circuit.open(error.to_string());
            return None;
        }
        let began = Instant::now();
        let claim = |lost_below| {
            self.context.stores.store.claim(
                &self.context.version.name,
                &self.holder,
                self.settings.lease(),
                self.settings.batch_notes,
                BATCH_BYTES,
                ClaimScope { after, lost_below },
            )
        };
        // A note that may end this worker comes last: the worker first indexes another note,
        // if one is due.
        let claimed = match self.totals.report().notes {
            0 => match claim(blame::MAX_CLAIMS_LOST).await {
                Ok(None) => claim(u32::MAX).await,
                claimed => claimed,
            },
            _ => claim(u32::MAX).await,
        };
        histogram!("elf_claim_seconds").record(began.elapsed());
        let outcome = match &claimed {
            Ok(Some(_)) => "notes",
            Ok(None) => "empty",
            Err(_) => "error",
        };
        counter!("elf_claims_total", "outcome" => outcome).increment(1);
        let admitted = match claimed {
            Ok(Some(claim)) => rollback::release_if_token_repeats(self, claim)
                .await
                .map(Some),
            Ok(None) => Ok(None),
            Err(error) => Err(error.into()),
        };
        match admitted {
            Ok(claim) => claim,
            Err(error) => {
                self.circuit.open(error.to_string());
                None
            }
        }
    }

    /// Waits for the stop, and then for the grace period.
    async fn grace_after(&self, stop: &CancellationToken) {
        stop.cancelled().await;
        tokio::time::sleep(Duration::from_secs(self.settings.grace_secs.into())).await;
    }

    /// Waits until Postgres and the index are available; returns at once if they are.
    async fn recovered(&self) {
        while self.circuit.outage().is_some() {
            tokio::time::sleep(retry::pause(&self.settings, self.circuit.openings())).await;
            match registry::ensure_ready(&self.context.stores, &self.context.version).await {
                Ok(()) => {
                    self.circuit.close();
                    self.verify.notify_one();
                }
                Err(error) => self.circuit.open(error.to_string()),
            }
        }
    }

    /// [`Self::recovered`]; a drain waits for it no longer than its grace period.
    async fn stores_recovered(&self, drain: Option<Drain>) -> Result<(), WorkerError> {
        match drain {
            Some(Drain) => self.within_grace(self.recovered()).await,
            None => {
                self.recovered().await;
                Ok(())
            }
        }
    }

    /// Waits for the end of an outage, at most for the grace period.
    async fn within_grace(&self, end: impl Future<Output = ()>) -> Result<(), WorkerError> {
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
            .or_else(|| Some(self.context.provider.state().error()?.to_string()))
    }

    async fn reached(&self, stage: Stage) {
        if let Some(breakpoint) = &self.breakpoint {
            breakpoint(stage).await;
        }
    }
}
