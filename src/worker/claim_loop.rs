//! The main loop of a worker: it claims batches and starts them, until it is told to stop.

use std::ops::ControlFlow::{self, Break, Continue};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::access_walk::AccessWalk;
use super::batch::{self, Extent};
use super::fresh::Fresh;
use super::lease::{self, Survived};
use super::low_water::LowWater;
use super::shared::{Drain, Shared};
use super::walk::Walk;
use super::{RELEASE_LIMIT, WorkerError, blame};
use crate::store::{Claim, Due};

/// What a step of the loop leads to: a value, or the end of the loop.
type Step<T = ()> = ControlFlow<Result<(), WorkerError>, T>;

/// The main loop and its state.
pub(super) struct ClaimLoop<'a> {
    shared: &'a Arc<Shared>,
    batches: &'a mut JoinSet<()>,
    stop: &'a CancellationToken,
    drain: Option<Drain>,
    /// One for each batch that may be in flight.
    permits: Arc<Semaphore>,
    fresh: Fresh,
    low_water: LowWater,
    /// The walk of the claims; `None` while the provider works.
    walk: Option<Walk>,
    access_walk: AccessWalk,
    /// Whether the last claim was that of a suspect.
    claimed_suspect: bool,
    /// Whether the last claim left out the rows in front of the low-water mark.
    owes_walk: bool,
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
        Self {
            shared,
            batches,
            stop,
            drain,
            permits: Arc::new(Semaphore::new(shared.settings.concurrency)),
            fresh: Fresh::new(Instant::now()),
            low_water: LowWater::default(),
            walk: None,
            access_walk: AccessWalk::new(),
            claimed_suspect: false,
            owes_walk: false,
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
        self.wait_for_stores().await?;
        // Until a suspect has ended, the worker claims nothing: a neighbour that was claimed
        // beside it would die with it each time, and be blamed too.
        if self.claimed_suspect && !self.batches.is_empty() {
            drop(permit);
            return self.wait_for_suspect().await;
        }
        let provider_works = self.shared.context.provider.state().error().is_none();
        let due = self.next_due(provider_works);
        // Read before the claim: a batch that ends after the claim may release notes that the
        // claim did not see.
        let nothing_in_flight =
            self.permits.available_permits() + 1 == self.shared.settings.concurrency;
        let claim = self.claim_or_widen(due).await?;
        let Some(claim) = claim else {
            drop(permit);
            return self
                .wait_or_end_drain(provider_works, nothing_in_flight)
                .await;
        };
        self.claimed_suspect = blame::is_suspect(&claim);
        if self.claimed_suspect && !nothing_in_flight {
            self.release_suspect(&claim).await;
            return Continue(());
        }
        self.start(claim, permit);
        match self.has_claimed_all() {
            true => self.wait_for_wake(provider_works).await,
            false => Continue(()),
        }
    }

    /// Whether the last claim took all rows, so that the next one would find none. A drain asks
    /// Postgres.
    fn has_claimed_all(&self) -> bool {
        self.walk.is_none() && self.drain.is_none() && !self.low_water.has_more()
    }

    /// Waits until one more batch may be in flight. Meanwhile the access walk goes on.
    async fn wait_for_permit(&mut self) -> Step<OwnedSemaphorePermit> {
        loop {
            let free = async {
                let permit = self.permits.clone().acquire_owned().await;
                permit.expect("the semaphore is never closed")
            };
            // Biased, here and below: an unbiased select could claim once more after the stop.
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return self.stopped(),
                permit = free => return Continue(permit),
                () = self.access_walk.is_due() => {}
            }
            self.step_access_walk().await?;
        }
    }

    /// Waits until Postgres and the index are available; returns at once if they are.
    async fn wait_for_stores(&self) -> Step {
        tokio::select! {
            biased;
            () = self.stop.cancelled() => self.stopped(),
            recovered = self.shared.wait_for_stores(self.drain) => continue_if_ok(recovered),
        }
    }

    /// Waits until a batch has ended, or the access walk has made a step.
    async fn wait_for_suspect(&mut self) -> Step {
        tokio::select! {
            biased;
            () = self.stop.cancelled() => return self.stopped(),
            _ = self.batches.join_next() => return Continue(()),
            () = self.access_walk.is_due() => {}
        }
        self.step_access_walk().await
    }

    /// Lets the access walk make a step. A stop waits for it as long as for a batch.
    async fn step_access_walk(&mut self) -> Step {
        tokio::select! {
            biased;
            () = Box::pin(self.access_walk.step(self.shared)) => Continue(()),
            () = self.shared.grace_after(self.stop) => self.stopped(),
        }
    }

    /// The rows of the next claim. While the provider is unavailable, the worker still indexes
    /// what needs no new vector: then its claims walk over the due rows.
    fn next_due(&mut self, provider_works: bool) -> Due {
        let now = Instant::now();
        if !provider_works {
            return self.walk.get_or_insert_with(|| Walk::new(now)).due(now);
        }
        self.walk = None;
        // A suspect was released until nothing is in flight, which is now. Its row may be in front of
        // the low-water mark.
        if self.claimed_suspect {
            return Due::All;
        }
        let due = self.fresh.due(now);
        self.fresh.claimed(due, now);
        match due {
            Due::All => self.low_water.due(now),
            due => due,
        }
    }

    /// Claims a batch of the notes that are `due`. If there is none, looks at the rows that `due`
    /// leaves out, unless to walk over all of them takes long and has been done just now.
    async fn claim_or_widen(&mut self, due: Due) -> Step<Option<Claim>> {
        let mut due = due;
        loop {
            let claim = self.claim(due).await?;
            due = match due {
                _ if claim.is_some() => return Continue(claim),
                Due::Within(_) => self.low_water.due(Instant::now()),
                Due::After(_) if self.may_walk() => Due::All,
                Due::After(_) | Due::All => return Continue(None),
            };
        }
    }

    /// Whether a claim may walk over all rows after one that found none behind a position. The end
    /// of a drain depends on it.
    fn may_walk(&self) -> bool {
        let rest = self.low_water.rest(Instant::now());
        self.walk.is_none() && (self.drain.is_some() || rest.is_zero())
    }

    /// Claims a batch of the notes that are `due`; `None` when there is none.
    async fn claim(&mut self, due: Due) -> Step<Option<Claim>> {
        let began = Instant::now();
        let claimed = self.claim_unless_late(due).await?;
        let upto = claimed.as_ref().map(|claim| claim.upto);
        // A claim during an outage of the stores says nothing about the rows.
        if self.walk.is_none() && (upto.is_some() || self.shared.circuit.outage().is_none()) {
            let has_more = claimed.as_ref().is_some_and(|claim| claim.has_more);
            let now = Instant::now();
            self.low_water.claimed(due, upto, has_more, began, now);
            self.owes_walk = matches!(due, Due::After(_));
            if !self.low_water.has_more() {
                self.fresh.caught_up(began);
            }
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
            claimed = self.shared.claim(due) => Continue(claimed),
            () = late => self.stopped(),
        }
    }

    /// Releases a suspect. The worker claims it again when nothing else is in flight.
    async fn release_suspect(&self, claim: &Claim) {
        let notes = claim.note_ids();
        lease::release(self.shared, claim.token, &notes, Survived::Unknown).await;
    }

    /// Starts the batch of a claim.
    fn start(&mut self, claim: Claim, permit: OwnedSemaphorePermit) {
        if let Some(walk) = &mut self.walk {
            walk.took(claim.upto);
        }
        // Ended batches stay in the set until they are joined.
        while self.batches.try_join_next().is_some() {}
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
    async fn wait_or_end_drain(&mut self, provider_works: bool, nothing_in_flight: bool) -> Step {
        let stores_work = self.shared.circuit.outage().is_none();
        if stores_work && let Some(walk) = &mut self.walk {
            walk.ended(Instant::now());
        }
        if self.drain.is_some() && nothing_in_flight && stores_work {
            return match provider_works {
                true => self.end_drain_unless_unanswered().await,
                false => self.wait_for_provider().await,
            };
        }
        self.wait_for_wake(provider_works).await
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
        let ready = self.shared.context.provider.ready();
        tokio::select! {
            biased;
            () = self.stop.cancelled() => self.stopped(),
            waited = self.shared.within_grace(ready) => continue_if_ok(waited),
        }
    }

    /// Waits until a note may be due: after a wake-up, an outage of the provider, the rest of a walk,
    /// or `worker.poll_interval_ms`.
    async fn wait_for_wake(&self, provider_works: bool) -> Step {
        let mut poll = Duration::from_millis(self.shared.settings.poll_interval_ms);
        // Not while the provider is unavailable: those claims walk by themselves.
        if self.owes_walk && self.walk.is_none() {
            poll = poll.min(self.low_water.rest(Instant::now()));
        }
        // `notify_one` stores one wake-up, so a notification since the claim is not lost.
        tokio::select! {
            biased;
            () = self.stop.cancelled() => return self.stopped(),
            () = self.shared.wake.notified() => {}
            () = self.shared.context.provider.ready(), if !provider_works => {}
            () = tokio::time::sleep(poll) => {}
        }
        Continue(())
    }
}

/// The loop goes on after `Ok`, and ends with an error.
fn continue_if_ok(outcome: Result<(), WorkerError>) -> Step {
    match outcome {
        Ok(()) => Continue(()),
        Err(error) => Break(Err(error)),
    }
}
