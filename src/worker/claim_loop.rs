//! The main loop of a worker: it claims batches and starts them, until it is told to stop.

use std::ops::ControlFlow::{self, Break, Continue};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::batch::{self, Extent};
use super::batch_limit::{BatchLimit, Done};
use super::lease::{self, Survived};
use super::shared::{Drain, Shared};
use super::turns::Turns;
use super::walk::Walks;
use super::{RELEASE_LIMIT, WorkerError, blame, points};
use crate::store::{Claim, Due};

/// What a step of the loop leads to: a value, or the end of the loop.
type Step<T = ()> = ControlFlow<Result<(), WorkerError>, T>;

/// When all batches have been in flight for so long, the access walk goes on meanwhile. It looks for new rows as often.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Whether the last claim was that of a suspect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Suspect {
    None,
    /// It was released until nothing else is in flight.
    Released,
    InFlight,
}

/// The main loop and its state.
pub(super) struct ClaimLoop<'a> {
    shared: &'a Arc<Shared>,
    batches: &'a mut JoinSet<()>,
    stop: &'a CancellationToken,
    drain: Option<Drain>,
    /// One for each batch that may be in flight.
    permits: Arc<Semaphore>,
    /// How many permits there are, held or not.
    open: usize,
    limit: BatchLimit,
    started: u64,
    /// Which rows the claims read while the provider works.
    turns: Turns,
    provider_works: bool,
    /// Which rows they read while it does not.
    walks: Walks,
    /// Which rows the access walk reads, while all batches wait for the provider. It indexes no text, so these rows
    /// stay due.
    access_walks: Walks,
    suspect: Suspect,
}

impl<'a> ClaimLoop<'a> {
    /// A loop that has not begun; it spawns into `batches`. With `drain` it ends when no note is
    /// due, and with an error when it is stopped or an outage lasts longer than the grace period.
    pub(super) fn new(
        shared: &'a Arc<Shared>,
        batches: &'a mut JoinSet<()>,
        stop: &'a CancellationToken,
        drain: Option<Drain>,
    ) -> Self {
        let limit = BatchLimit::new(shared.settings.concurrency);
        let open = limit.allowed();
        Self {
            shared,
            batches,
            stop,
            drain,
            permits: Arc::new(Semaphore::new(open)),
            open,
            limit,
            started: 0,
            turns: Turns::new(Instant::now()),
            provider_works: true,
            walks: Walks::new(Instant::now()),
            access_walks: Walks::new(Instant::now()),
            suspect: Suspect::None,
        }
    }

    /// Claims batches and starts them until the end of the loop. Batches may still be in flight
    /// then.
    pub(super) async fn run(mut self) -> Result<(), WorkerError> {
        loop {
            if let Break(outcome) = self.claim_next().await {
                return outcome;
            }
        }
    }

    /// The end of the loop after a stop.
    fn stopped<T>(&self) -> Step<T> {
        Break(match self.drain {
            Some(Drain) => Err(WorkerError::Stopped),
            None => Ok(()),
        })
    }

    /// Claims the next batch and starts it. If no note is due, waits until one may be.
    async fn claim_next(&mut self) -> Step {
        let permit = self.wait_for_permit().await?;
        self.wait_for_storage().await?;
        // Until a suspect has ended, the worker claims nothing: a neighbour that was claimed
        // beside it would die with it each time, and be blamed too.
        if self.suspect != Suspect::None && !self.batches.is_empty() {
            drop(permit);
            return self.wait_for_suspect().await;
        }
        let due = self.next_due();
        // Read before the claim: a batch that ends after the claim may release notes that the
        // claim did not see.
        let nothing_in_flight = self.permits.available_permits() + 1 == self.open;
        let claim = self.claim_or_widen(due).await?;
        let Some(claim) = claim else {
            drop(permit);
            self.limit.idle();
            return self.wait_or_end_drain(nothing_in_flight).await;
        };
        self.suspect = match blame::is_suspect(&claim) {
            false => Suspect::None,
            true if nothing_in_flight => Suspect::InFlight,
            true => Suspect::Released,
        };
        if self.suspect == Suspect::Released {
            self.release_suspect(&claim).await;
            return Continue(());
        }
        self.start(claim, permit);
        match self.has_claimed_all() {
            true => {
                self.limit.idle();
                self.wait_for_wake().await
            }
            false => Continue(()),
        }
    }

    /// Whether the last claim took all rows, so that the next one would find none. A drain asks
    /// Postgres.
    fn has_claimed_all(&self) -> bool {
        self.provider_works && self.drain.is_none() && !self.turns.has_more()
    }

    /// Waits until one more batch may be in flight. Meanwhile the access walk goes on.
    async fn wait_for_permit(&mut self) -> Step<OwnedSemaphorePermit> {
        loop {
            let is_full = self.permits.available_permits() == 0;
            let free = async {
                let permit = self.permits.clone().acquire_owned().await;
                permit.expect("the semaphore is never closed")
            };
            // Biased, here and below: an unbiased select could claim once more after the stop.
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return self.stopped(),
                permit = free => {
                    if is_full {
                        self.limit.full(self.done(), Instant::now());
                    }
                    match self.unless_over_limit(permit) {
                        Some(permit) => return Continue(permit),
                        None => continue,
                    }
                }
                () = walk_is_due(self.shared, &self.access_walks) => {}
            }
            self.apply_next_access().await?;
        }
    }

    /// What the batches did that have ended, while one permit is held.
    fn done(&self) -> Done {
        let in_flight = self.open - self.permits.available_permits() - 1;
        let report = self.shared.totals.report();
        Done {
            batches: self.started - in_flight as u64,
            work: report.notes + report.points,
            bytes: report.points * points::bytes_of_one(&self.shared.pipeline.version) as u64,
        }
    }

    /// Adds permits up to the limit, or takes this one away.
    fn unless_over_limit(&mut self, permit: OwnedSemaphorePermit) -> Option<OwnedSemaphorePermit> {
        let allowed = self.limit.allowed();
        if allowed < self.open {
            permit.forget();
            self.open -= 1;
            return None;
        }
        self.permits.add_permits(allowed - self.open);
        self.open = allowed;
        Some(permit)
    }

    /// Waits until Postgres and the index are available; returns at once if they are.
    async fn wait_for_storage(&self) -> Step {
        tokio::select! {
            biased;
            () = self.stop.cancelled() => self.stopped(),
            recovered = self.shared.wait_for_storage(self.drain) => continue_if_ok(recovered),
        }
    }

    /// Waits until a batch has ended, or the access walk has made a step.
    async fn wait_for_suspect(&mut self) -> Step {
        tokio::select! {
            biased;
            () = self.stop.cancelled() => return self.stopped(),
            _ = self.batches.join_next() => return Continue(()),
            () = walk_is_due(self.shared, &self.access_walks) => {}
        }
        self.apply_next_access().await
    }

    /// Takes the next notes of the access walk. Deletes the points of those that are not live, and gives the points of the
    /// others the access labels of their rows. A stop waits for it as long as for a batch.
    async fn apply_next_access(&mut self) -> Step {
        if self.shared.circuit.outage().is_some() {
            return Continue(());
        }
        let shared = self.shared;
        let walks = &mut self.access_walks;
        let step = async {
            let mut due = Some(walks.next(Instant::now()));
            while let Some(rows) = due {
                if let Some(claim) = shared.claim(rows, true).await {
                    walks.took(claim.upto);
                    return batch::run(shared, claim, Extent::Access).await;
                }
                // A claim during a storage outage says nothing about the rows.
                if shared.circuit.outage().is_some() {
                    return;
                }
                due = walks.wider(Instant::now());
            }
        };
        tokio::select! {
            biased;
            () = Box::pin(step) => Continue(()),
            () = shared.grace_after(self.stop) => self.stopped(),
        }
    }

    /// The rows of the next claim. While the provider is unavailable, the worker still indexes
    /// what needs no new vector: then its claims walk over the due rows.
    fn next_due(&mut self) -> Due {
        let now = Instant::now();
        let worked = self.provider_works;
        self.provider_works = self.shared.pipeline.provider.state().error().is_none();
        if !self.provider_works {
            if worked {
                self.walks = Walks::new(now);
            }
            return self.walks.next(now);
        }
        // The worker released a suspect until nothing is in flight, which is now. The suspect's row may
        // be in front of the mark (`turns.rs`).
        match self.suspect {
            Suspect::Released => Due::All,
            Suspect::None | Suspect::InFlight => self.turns.next(now),
        }
    }

    /// Claims a batch of the notes that are `due`. If there is none, looks at the rows that `due`
    /// leaves out, unless a claim has read all rows just now and took long. A drain always looks at them,
    /// because it ends when none is due.
    async fn claim_or_widen(&mut self, due: Due) -> Step<Option<Claim>> {
        let mut due = due;
        loop {
            let claim = self.claim(due).await?;
            // A claim during a storage outage says nothing about the rows.
            if claim.is_some() || self.shared.circuit.outage().is_some() {
                return Continue(claim);
            }
            let now = Instant::now();
            let wider = match self.provider_works {
                true => self.turns.wider(due, self.drain.is_some(), now),
                false => self.walks.wider(now),
            };
            due = match wider {
                Some(wider) => wider,
                None => return Continue(None),
            };
        }
    }

    /// Claims a batch of the notes that are `due`; `None` when there is none.
    async fn claim(&mut self, due: Due) -> Step<Option<Claim>> {
        let began = Instant::now();
        let claimed = self.claim_unless_late(due).await?;
        let upto = claimed.as_ref().map(|claim| claim.upto);
        if self.provider_works && (upto.is_some() || self.shared.circuit.outage().is_none()) {
            let has_more = claimed.as_ref().is_some_and(|claim| claim.has_more);
            let now = Instant::now();
            self.turns.claimed(due, upto, has_more, began, now);
        }
        Continue(claimed)
    }

    async fn claim_unless_late(&self, due: Due) -> Step<Option<Claim>> {
        // Not cancelled midway: Postgres could have leased notes to this worker, and the worker
        // would not know. A stop waits for the claim as long as for a batch, and with a short grace
        // period as long as for the release of leases.
        let late = async {
            let grace = Duration::from_secs(self.shared.settings.grace_secs.into());
            self.stop.cancelled().await;
            tokio::time::sleep(grace.max(RELEASE_LIMIT)).await;
        };
        tokio::select! {
            biased;
            claimed = self.shared.claim(due, false) => Continue(claimed),
            () = late => self.stopped(),
        }
    }

    /// Releases a suspect. The worker claims it again when nothing else is in flight.
    async fn release_suspect(&self, claim: &Claim) {
        let notes = claim.note_ids();
        lease::release(self.shared, claim.token, &notes, Survived::Unknown).await;
    }

    fn start(&mut self, claim: Claim, permit: OwnedSemaphorePermit) {
        if !self.provider_works {
            self.walks.took(claim.upto);
        }
        // Ended batches stay in the set until they are joined.
        while self.batches.try_join_next().is_some() {}
        self.started += 1;
        let shared = self.shared.clone();
        self.batches.spawn(async move {
            batch::run(&shared, claim, Extent::Whole).await;
            drop(permit);
            // New rows of these notes woke the worker while it could not claim them.
            shared.wake.notify_one();
        });
    }

    /// After a claim that found no note: waits until one may be due, or ends the drain.
    /// `nothing_in_flight` is of the moment before that claim.
    async fn wait_or_end_drain(&mut self, nothing_in_flight: bool) -> Step {
        let storage_works = self.shared.circuit.outage().is_none();
        if self.drain.is_some() && nothing_in_flight && storage_works {
            return match self.provider_works {
                true => self.end_drain_unless_unanswered().await,
                false => self.wait_for_provider().await,
            };
        }
        self.wait_for_wake().await
    }

    /// Ends the drain, unless an upsert was not answered: its note is due again after one lease,
    /// and the drain waits for that.
    async fn end_drain_unless_unanswered(&self) -> Step {
        let Some(unanswered_until) = self.shared.leases.take_unanswered_due() else {
            return Break(Ok(()));
        };
        tokio::select! {
            biased;
            () = self.stop.cancelled() => self.stopped(),
            () = tokio::time::sleep_until(unanswered_until.into()) => Continue(()),
        }
    }

    /// Waits for the end of an outage of the provider, at most for the grace period.
    async fn wait_for_provider(&self) -> Step {
        let ready = self.shared.pipeline.provider.ready();
        tokio::select! {
            biased;
            () = self.stop.cancelled() => self.stopped(),
            waited = self.shared.within_grace(ready) => continue_if_ok(waited),
        }
    }

    /// Waits until a note may be due: after a wake-up, an outage of the provider, the rest after a claim of all
    /// rows, or `worker.poll_interval_ms`.
    async fn wait_for_wake(&self) -> Step {
        let mut poll = Duration::from_millis(self.shared.settings.poll_interval_ms);
        // Not while the provider is unavailable: the walk rests by itself.
        if self.provider_works
            && let Some(rest) = self.turns.wait(Instant::now())
        {
            poll = poll.min(rest);
        }
        // `notify_one` stores one wake-up, so a notification since the claim is not lost.
        tokio::select! {
            biased;
            () = self.stop.cancelled() => return self.stopped(),
            () = self.shared.wake.notified() => {}
            () = self.shared.pipeline.provider.ready(), if !self.provider_works => {}
            () = tokio::time::sleep(poll) => {}
        }
        Continue(())
    }
}

/// Waits until it is time for the next claim of an access walk.
async fn walk_is_due(shared: &Shared, walks: &Walks) {
    if walks.is_at_end() || shared.circuit.outage().is_some() {
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// The loop goes on after `Ok`, and ends with an error.
fn continue_if_ok(outcome: Result<(), WorkerError>) -> Step {
    match outcome {
        Ok(()) => Continue(()),
        Err(error) => Break(Err(error)),
    }
}
