//! The upkeep: enqueues expired notes, deletes old done rows, and cleans up (`tidy`). One of the
//! workers of a version does it under the upkeep lease; if it dies, another takes over when the
//! lease expires. The observer of the same worker counts notes and chunks. If every worker read
//! whole tables, there would always be an open snapshot, and Postgres could not vacuum.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::tidy::Tidy;
use super::{Shared, WorkerContext, watch_served};
use crate::registry::IndexContext;
use crate::store::StoreError;

/// Far longer than a note needs from the claim to the index, so that a later look finds a note
/// that expired while a worker indexed it.
const LOOK_BACK: Duration = Duration::from_secs(600);

/// How often the worker looks so far back, at most. In between it looks at what expired since its last
/// look: when a million notes expire at once, they are not read each second.
const LOOK_BACK_EVERY: Duration = Duration::from_secs(10);

/// The pause between two looks so far back is so many times as long as one takes, if that is longer, but
/// at most half of [`LOOK_BACK`], so that no note falls between two.
const REST: u32 = 19;

/// A look finds what the one before it was too early for.
const OVERLAP: Duration = Duration::from_secs(10);

/// After an outage of this length the worker looks at all expired notes: notes that expired
/// during the outage may be older than [`LOOK_BACK`].
const LONG_OUTAGE: Duration = Duration::from_secs(300);

/// How often all expired notes are looked at.
const ALL_EVERY: Duration = Duration::from_secs(3_600);

/// The lease on the upkeep of a version, for a worker that polls at this interval.
fn lease(poll: Duration) -> Duration {
    (poll * 10).max(Duration::from_secs(30))
}

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

/// Asks for the lease when it is time.
async fn keep_lease(shared: &Shared) {
    let poll = poll_interval(shared);
    let mut ticks = every(poll);
    let mut asked_at = None;
    loop {
        ticks.tick().await;
        let now = Instant::now();
        // Without asking the circuit, each look during an outage would be one more connection.
        if shared.circuit.outage().is_none() && is_over(asked_at, now, lease(poll) / 3) {
            asked_at = Some(now);
            take_upkeep(shared, lease(poll)).await;
        }
    }
}

/// Expires notes and cleans up at every poll interval.
async fn keep_up(shared: &Shared) {
    let mut ticks = every(poll_interval(shared));
    let mut looks = Looks::default();
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
        tidy.clean_up_if_due(shared, Instant::now()).await;
    }
}

/// Whether the lease that was held until then is still held.
pub fn holds_lease(until: Option<Instant>) -> bool {
    until.is_some_and(|until| Instant::now() < until)
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
async fn take_upkeep(shared: &Shared, lease: Duration) {
    let WorkerContext {
        stores: IndexContext { store, .. },
        version,
        ..
    } = &shared.context;
    let asked = Instant::now();
    let taking = store.take_upkeep(&version.name, &shared.holder, lease);
    match tokio::time::timeout(lease / 3, taking).await {
        Ok(Ok(taken)) => {
            shared.upkeep.send_replace(taken.then(|| asked + lease));
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
    full: Option<Instant>,
    /// From the start of the last one of [`LOOK_BACK`] to the next.
    wide_every: Duration,
}

impl Looks {
    /// How far back to look at `now`; `None` looks at all of them.
    fn look_back(&self, now: Instant) -> Option<Duration> {
        let last = self.last.filter(|&last| now - last < LONG_OUTAGE)?;
        if is_over(self.full, now, ALL_EVERY) {
            return None;
        }
        match is_over(self.wide, now, self.wide_every.max(LOOK_BACK_EVERY)) {
            true => Some(LOOK_BACK),
            false => Some(now - last + OVERLAP),
        }
    }

    /// Records a look that began at `now` and took so long.
    fn looked(&mut self, now: Instant, look_back: Option<Duration>, took: Duration) {
        self.last = Some(now);
        if look_back.is_none_or(|time| time >= LOOK_BACK) {
            self.wide = Some(now);
        }
        if look_back == Some(LOOK_BACK) {
            self.wide_every = (took * (REST + 1)).min(LOOK_BACK / 2);
        }
        if look_back.is_none() {
            self.full = Some(now);
        }
    }
}

/// Expires every note that is due, however long ago.
pub async fn once(shared: &Shared) {
    expire_notes(shared, None).await;
}

/// Enqueues expired notes and deletes old done rows. Returns whether it succeeded.
async fn expire_notes(shared: &Shared, look_back: Option<Duration>) -> bool {
    let store = &shared.context.stores.store;
    let work = async {
        let mut after = None;
        loop {
            let version = &shared.context.version.name;
            // While the provider is unavailable, claims take what is behind the rows that they have seen.
            let provider_works = shared.context.provider.state().error().is_none();
            let expiring = store.expire(version, look_back, after.as_ref(), provider_works);
            let page = expiring.await?;
            if page.enqueued > 0 {
                tracing::debug!(page.enqueued, "notes expired");
                // Without LISTEN no notification would wake the worker.
                shared.wake.notify_one();
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        if !shared.keep_done.is_zero() {
            store.drop_done(shared.keep_done).await?;
        }
        Ok::<(), StoreError>(())
    };
    // The claim loop meets the same outage and logs it.
    let done = work.await;
    done.inspect_err(|error| tracing::debug!(%error, "could not expire notes"))
        .is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_long_outage_all_expired_notes_are_looked_at() {
        let start = Instant::now();
        let at = |secs| start + Duration::from_secs(secs);
        let mut looks = Looks::default();
        assert_eq!(looks.look_back(at(0)), None);
        looks.looked(at(0), None, Duration::ZERO);
        assert_eq!(looks.look_back(at(299)), Some(LOOK_BACK));
        assert_eq!(looks.look_back(at(300)), None);
        looks.looked(at(3_599), Some(LOOK_BACK), Duration::ZERO);
        assert_eq!(looks.look_back(at(3_600)), None, "once an hour too");
    }

    /// How often a note that expired at second 1 is read, when a look takes so long.
    fn reads(took: Duration) -> u32 {
        let start = Instant::now();
        let mut looks = Looks::default();
        looks.looked(start, None, Duration::ZERO);
        let (mut after, mut reads) = (Duration::from_secs(1), 0);
        while after < LOOK_BACK {
            let look_back = looks.look_back(start + after);
            looks.looked(start + after, look_back, took);
            let back = look_back.expect("the look at all was just now");
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
