//! How many requests are in flight at once: fewer when the provider is
//! overworked, slowly more when it copes (additive increase, multiplicative
//! decrease, as in TCP; RFC 5681).

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::Semaphore;

/// Between one lane and as many as are configured. Those who wait enter in the
/// order they came.
pub struct Lanes {
    state: Mutex<State>,
    free: Semaphore,
}

struct State {
    /// A fraction is what was earned towards the next lane.
    limit: f64,
    max: f64,
    /// Lanes there are, free ones and those in use.
    open: usize,
    narrowed: Option<Instant>,
}

impl Lanes {
    /// `max` lanes, all of them open.
    pub fn new(max: usize) -> Self {
        let open = max.max(1);
        Self {
            state: Mutex::new(State {
                limit: open as f64,
                max: open as f64,
                open,
                narrowed: None,
            }),
            free: Semaphore::new(open),
        }
    }

    /// Waits for a free lane; it is free again when the guard is dropped.
    pub async fn enter(&self) -> Lane<'_> {
        let permit = self.free.acquire().await;
        permit.expect("nobody closes the semaphore").forget();
        Lane(self)
    }

    /// A request succeeded: a round of them earns one lane.
    pub fn widen(&self) {
        let mut state = self.lock();
        state.limit = (state.limit + 1.0 / state.limit).min(state.max);
        self.adjust(&mut state);
    }

    /// A request that was sent at `sent` met an overworked provider. Requests
    /// that were in flight together tell this once, not each anew.
    pub fn narrow(&self, sent: Instant, now: Instant) {
        let mut state = self.lock();
        if state.narrowed.is_none_or(|narrowed| sent > narrowed) {
            state.limit = (state.limit / 2.0).max(1.0);
            state.narrowed = Some(now);
        }
        self.adjust(&mut state);
    }

    /// Opens lanes, or closes free ones. One in use is closed when it is left.
    fn adjust(&self, state: &mut State) {
        let limit = state.limit as usize;
        if limit > state.open {
            self.free.add_permits(limit - state.open);
            state.open = limit;
        }
        state.open -= self.free.forget_permits(state.open.saturating_sub(limit));
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request in flight.
pub struct Lane<'a>(&'a Lanes);

impl Drop for Lane<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        if state.open > state.limit as usize {
            state.open -= 1;
        } else {
            self.0.free.add_permits(1);
        }
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
