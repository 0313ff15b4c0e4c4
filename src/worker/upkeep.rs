//! The upkeep: enqueues expired notes, deletes old done rows, and cleans up (`tidy`). One of the
//! workers of a version does it under the upkeep lease; if it dies, another takes over when the
//! lease expires. The observer of the same worker counts notes and chunks. If every worker read
//! whole tables, there would always be an open snapshot, and Postgres could not vacuum.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::clock::{self, Ahead};
use super::tidy::Tidy;
use super::{Shared, watch_served};
use crate::store::{ExpiryPosition, StoreError};

/// Far longer than a note needs from the claim to the index, so that a later look finds a note
/// that expired while a worker indexed it.
const LOOK_BACK: Duration = Duration::from_secs(600);

/// How often the worker looks so far back, at most. In between it looks at what expired since its last
/// look: when a million notes expire at once, they are not read each second.
const LOOK_BACK_EVERY: Duration = Duration::from_secs(10);

/// If a look so far back is slow, the worker pauses 19 times as long as it took, at most five minutes (half of
/// [`LOOK_BACK`]). So no note falls between two looks.
const REST: u32 = 19;

/// A look reaches back this much further than the start of the last one, which was too early for some notes.
const OVERLAP: Duration = Duration::from_secs(10);

/// After an outage of this length the worker looks at all expired notes: notes that expired
/// during the outage may be older than [`LOOK_BACK`].
const LONG_OUTAGE: Duration = Duration::from_secs(300);

const ALL_EVERY: Duration = Duration::from_secs(3_600);

/// How long one tick looks at all of them: notes that expire now wait meanwhile.
const ALL_FOR: Duration = Duration::from_secs(1);

/// The lease on the upkeep. Another worker takes over when it ends, so that expired notes leave the
/// index within seconds after a worker was killed.
const LEASE: Duration = Duration::from_secs(5);

/// Keeps the upkeep lease, does the upkeep while it holds the lease, and looks at what is served, with or
/// without the lease. Runs until dropped.
pub async fn run(shared: Arc<Shared>) {
    // Side by side: when millions of notes expire, to enqueue them takes longer than the lease.
    tokio::join!(
        keep_lease(&shared),
        keep_up(&shared),
        watch_served::run(&shared)
    );
}

/// Asks for the lease again and again, whether this worker has it or not.
async fn keep_lease(shared: &Shared) {
    let mut ticks = every(LEASE / 3);
    loop {
        ticks.tick().await;
        // Without asking the circuit, each look during an outage would be one more connection.
        if shared.circuit.outage().is_none() {
            take_upkeep(shared).await;
        }
    }
}

/// Expires notes and cleans up at every poll interval.
async fn keep_up(shared: &Shared) {
    let mut ticks = every(poll_interval(shared));
    let mut looks = Looks::default();
    let mut all = LookAtAll::default();
    let mut ahead = Ahead::default();
    let mut tidy = Tidy::default();
    loop {
        ticks.tick().await;
        if !holds_lease(*shared.upkeep.borrow()) || shared.circuit.outage().is_some() {
            continue;
        }
        let now = Instant::now();
        let look_back = looks.look_back(now);
        if expire_notes(shared, look_back).await {
            looks.looked(now, look_back, now.elapsed());
        }
        if looks.begins_all(now) {
            all = LookAtAll::from_the_beginning();
        }
        all.go_on(shared).await;
        drop_done(shared).await;
        ahead.reschedule_if_due(shared, Instant::now()).await;
        tidy.clean_up_if_due(shared, Instant::now()).await;
    }
}

/// Whether a lease until then is still held.
pub fn holds_lease(until: Option<Instant>) -> bool {
    until.is_some_and(|until| Instant::now() < until)
}

/// Ends the lease, so that another worker takes over at once.
pub async fn release(shared: &Shared) {
    if !holds_lease(shared.upkeep.send_replace(None)) {
        return;
    }
    let (store, version) = shared.store_and_version();
    if let Err(error) = store.release_upkeep(version, &shared.holder).await {
        tracing::debug!(%error, "could not release the upkeep lease, it will expire");
    }
}

fn poll_interval(shared: &Shared) -> Duration {
    Duration::from_millis(shared.settings.poll_interval_ms)
}

fn every(interval: Duration) -> tokio::time::Interval {
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    ticks
}

fn is_over(at: Option<Instant>, now: Instant, interval: Duration) -> bool {
    at.is_none_or(|at| now - at >= interval)
}

/// Takes or renews the upkeep lease. If Postgres does not answer, the worker holds what it had until that
/// expires.
async fn take_upkeep(shared: &Shared) {
    let (store, version) = shared.store_and_version();
    let asked = Instant::now();
    let taking = store.take_upkeep(version, &shared.holder, LEASE);
    match tokio::time::timeout(LEASE / 3, taking).await {
        Ok(Ok(taken)) => {
            shared.upkeep.send_replace(taken.then(|| asked + LEASE));
        }
        Ok(Err(error)) => tracing::debug!(%error, "could not take the upkeep lease"),
        Err(_) => tracing::debug!("no answer about the upkeep lease"),
    }
}

/// When the worker looked for expired notes: the starts of the last look, of the last one of
/// [`LOOK_BACK`] and of the last one at all notes.
#[derive(Debug, Default)]
struct Looks {
    last: Option<Instant>,
    wide: Option<Instant>,
    all: Option<Instant>,
    /// The time from the start of the last look of [`LOOK_BACK`] to the next one.
    wide_every: Duration,
}

impl Looks {
    /// How far back to look at `now`.
    fn look_back(&self, now: Instant) -> Duration {
        match self.last {
            Some(last) if !is_over(self.wide, now, self.wide_every.max(LOOK_BACK_EVERY)) => {
                now - last + OVERLAP
            }
            _ => LOOK_BACK,
        }
    }

    /// Records a look that began at `now` and took so long.
    fn looked(&mut self, now: Instant, look_back: Duration, took: Duration) {
        if is_over(self.last.replace(now), now, LONG_OUTAGE) {
            self.all = None;
        }
        if look_back >= LOOK_BACK {
            self.wide = Some(now);
            self.wide_every = (took * (REST + 1)).min(LOOK_BACK / 2);
        }
    }

    /// Whether a look at all notes that have expired is to begin now.
    fn begins_all(&mut self, now: Instant) -> bool {
        let begins = self.last.is_some() && is_over(self.all, now, ALL_EVERY);
        if begins {
            self.all = Some(now);
        }
        begins
    }
}

/// A look at all notes that have expired, however long ago. There may be millions, so it is done in
/// parts.
#[derive(Debug, Default)]
struct LookAtAll {
    has_more: bool,
    after: Option<ExpiryPosition>,
}

impl LookAtAll {
    fn from_the_beginning() -> Self {
        Self {
            has_more: true,
            after: None,
        }
    }

    /// Goes on where it was for [`ALL_FOR`]. Returns whether it succeeded.
    async fn go_on(&mut self, shared: &Shared) -> bool {
        let began = Instant::now();
        while self.has_more && began.elapsed() < ALL_FOR {
            match expire_page(shared, None, self.after.as_ref()).await {
                Ok(next) => self.after = next,
                Err(_) => return false,
            }
            self.has_more = self.after.is_some();
        }
        true
    }
}

/// Does the upkeep of a drain: expires every note that is due, however long ago.
pub async fn once(shared: &Shared) {
    let mut all = LookAtAll::from_the_beginning();
    while all.has_more && all.go_on(shared).await {}
    drop_done(shared).await;
    clock::reschedule_all(shared).await;
}

/// Enqueues notes that have expired within `look_back`. Returns whether it succeeded.
async fn expire_notes(shared: &Shared, look_back: Duration) -> bool {
    let mut after = None;
    loop {
        match expire_page(shared, Some(look_back), after.as_ref()).await {
            Ok(None) => return true,
            Ok(next) => after = next,
            Err(_) => return false,
        }
    }
}

/// Enqueues a page of expired notes. Returns where the next one begins.
async fn expire_page(
    shared: &Shared,
    look_back: Option<Duration>,
    after: Option<&ExpiryPosition>,
) -> Result<Option<ExpiryPosition>, StoreError> {
    let (store, version) = shared.store_and_version();
    // While the provider is unavailable, claims take what is behind the rows that they have seen.
    let provider_works = shared.pipeline.provider.state().error().is_none();
    let page = store
        .expire(version, look_back, after, provider_works)
        .await
        // The claim loop meets the same outage and logs it.
        .inspect_err(|error| tracing::debug!(%error, "could not expire notes"))?;
    if page.enqueued > 0 {
        tracing::debug!(page.enqueued, "notes expired");
        // Without LISTEN no notification would wake the worker.
        shared.wake.notify_one();
    }
    Ok(page.next)
}

async fn drop_done(shared: &Shared) {
    if shared.keep_done.is_zero() {
        return;
    }
    let (store, _) = shared.store_and_version();
    if let Err(error) = store.drop_done(shared.keep_done).await {
        tracing::debug!(%error, "could not delete done rows");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_long_outage_all_expired_notes_are_looked_at() {
        let start = Instant::now();
        let at = |secs| start + Duration::from_secs(secs);
        let mut looks = Looks::default();
        assert!(!looks.begins_all(at(0)), "first those that expire now");
        assert_eq!(looks.look_back(at(0)), LOOK_BACK);
        looks.looked(at(0), LOOK_BACK, Duration::ZERO);
        assert!(looks.begins_all(at(0)));
        assert_eq!(looks.look_back(at(5)), Duration::from_secs(5) + OVERLAP);
        looks.looked(at(299), LOOK_BACK, Duration::ZERO);
        assert!(!looks.begins_all(at(299)));
        assert_eq!(looks.look_back(at(599)), LOOK_BACK);
        looks.looked(at(599), LOOK_BACK, Duration::ZERO);
        assert!(looks.begins_all(at(599)));
        for secs in (600..4_199).step_by(100) {
            looks.looked(at(secs), LOOK_BACK, Duration::ZERO);
            assert!(!looks.begins_all(at(secs)));
        }
        assert!(looks.begins_all(at(4_199)), "once an hour too");
    }

    /// How often a note that expired at second 1 is read, when a look takes so long.
    fn reads(took: Duration) -> u32 {
        let start = Instant::now();
        let mut looks = Looks::default();
        looks.looked(start, LOOK_BACK, Duration::ZERO);
        let (mut after, mut reads) = (Duration::from_secs(1), 0);
        while after < LOOK_BACK {
            let back = looks.look_back(start + after);
            looks.looked(start + after, back, took);
            reads += u32::from(after - Duration::from_secs(1) <= back);
            after += took.max(Duration::from_secs(1));
        }
        reads
    }

    #[test]
    fn the_more_notes_expire_at_once_the_fewer_times_they_are_read() {
        let of_one = reads(Duration::ZERO);
        assert!((60..90).contains(&of_one), "{of_one}");
        let of_millions = reads(Duration::from_secs(5));
        assert!((8..12).contains(&of_millions), "{of_millions}");
    }
}
