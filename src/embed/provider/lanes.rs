//! How many requests are in flight at once: fewer when the provider is
//! overworked, slowly more when it copes (additive increase, multiplicative
//! decrease, as in TCP; RFC 5681).

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::Notify;

/// Between one lane and as many as are configured.
pub struct Lanes {
    state: Mutex<State>,
    changed: Notify,
}

struct State {
    /// A fraction is what was earned towards the next lane.
    limit: f64,
    max: f64,
    in_flight: usize,
    narrowed: Option<Instant>,
}

impl Lanes {
    /// `max` lanes, all of them open.
    pub fn new(max: usize) -> Self {
        let max = max.max(1) as f64;
        Self {
            state: Mutex::new(State {
                limit: max,
                max,
                in_flight: 0,
                narrowed: None,
            }),
            changed: Notify::new(),
        }
    }

    /// Waits for a free lane; it is free again when the guard is dropped.
    pub async fn enter(&self) -> Lane<'_> {
        loop {
            // Registered before the look, or a lane freed in between would be missed.
            let changed = self.changed.notified();
            {
                let mut state = self.lock();
                if (state.in_flight as f64) < state.limit.floor() {
                    state.in_flight += 1;
                    return Lane(self);
                }
            }
            changed.await;
        }
    }

    /// A request succeeded: a round of them earns one lane.
    pub fn widen(&self) {
        let mut state = self.lock();
        state.limit = (state.limit + 1.0 / state.limit).min(state.max);
        drop(state);
        self.changed.notify_waiters();
    }

    /// A request that was sent at `sent` met an overworked provider. Requests
    /// that were in flight together tell this once, not each anew.
    pub fn narrow(&self, sent: Instant, now: Instant) {
        let mut state = self.lock();
        if state.narrowed.is_none_or(|narrowed| sent > narrowed) {
            state.limit = (state.limit / 2.0).max(1.0);
            state.narrowed = Some(now);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request in flight.
pub struct Lane<'a>(&'a Lanes);

impl Drop for Lane<'_> {
    fn drop(&mut self) {
        self.0.lock().in_flight -= 1;
        self.0.changed.notify_waiters();
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;
    use futures::FutureExt;
    use std::time::Duration;

    fn open(lanes: &Lanes) -> usize {
        let mut inside = Vec::new();
        while let Some(lane) = lanes.enter().now_or_never() {
            inside.push(lane);
        }
        inside.len()
    }

    #[test]
    fn an_overworked_provider_gets_half_as_many_requests_but_never_none() {
        let lanes = Lanes::new(8);
        let mut now = Instant::now();
        let mut seen = vec![open(&lanes)];
        for _ in 0..4 {
            let sent = now + Duration::from_secs(1);
            now = sent + Duration::from_secs(1);
            lanes.narrow(sent, now);
            seen.push(open(&lanes));
        }
        assert_eq!(seen, [8, 4, 2, 1, 1]);
    }

    #[test]
    fn requests_that_failed_together_count_once() {
        let lanes = Lanes::new(8);
        let sent = Instant::now();
        for _ in 0..8 {
            lanes.narrow(sent, sent + Duration::from_secs(1));
        }
        assert_eq!(open(&lanes), 4);
    }

    #[test]
    fn successes_open_the_lanes_again_up_to_the_configured_number() {
        let lanes = Lanes::new(4);
        let now = Instant::now();
        lanes.narrow(now, now);
        lanes.narrow(now + Duration::from_secs(1), now + Duration::from_secs(1));
        assert_eq!(open(&lanes), 1);
        lanes.widen();
        assert_eq!(open(&lanes), 2);
        for _ in 0..100 {
            lanes.widen();
        }
        assert_eq!(open(&lanes), 4);
    }

    #[tokio::test]
    async fn who_waits_enters_when_a_lane_is_left() {
        let lanes = Lanes::new(1);
        let first = lanes.enter().await;
        let mut second = Box::pin(lanes.enter());
        assert!((&mut second).now_or_never().is_none());
        drop(first);
        second.now_or_never().unwrap();
    }
}
