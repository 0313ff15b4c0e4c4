//! Requests in flight: as many as the provider's pace allows.

use std::sync::Mutex;
use std::time::Duration;

use tokio::sync::Semaphore;

use super::ceiling::Learned;
use super::clock::Clock;
use super::metrics;
use super::pace::{Pace, Sent};
use crate::config;
use crate::embed::{EmbedError, Limits};
use crate::lock::lock;

/// Lanes for failing. Two, so that one half of a request is answered while the other half hangs.
const APART: usize = 2;

/// Between one lane and as many as are configured. Waiting requests enter in the
/// order in which they came.
pub struct AdaptiveConcurrency {
    state: Mutex<State>,
    free: Semaphore,
    /// More of them, for requests that may hang or fail.
    apart: Semaphore,
    clock: Clock,
    usd_per_token: Option<f64>,
}

struct State {
    pace: Pace,
    /// Lanes that exist, free or in use.
    open: usize,
}

impl AdaptiveConcurrency {
    /// Lanes for requests within `limits` and `settings`.
    pub fn new(limits: Limits, settings: &config::Embedding, clock: Clock) -> Self {
        let timeout = Duration::from_millis(settings.timeout_ms);
        let pace = Pace::new(limits, settings.concurrency, timeout);
        let open = pace.allowed();
        metrics::in_flight_limit(open);
        Self {
            state: Mutex::new(State { pace, open }),
            free: Semaphore::new(open),
            apart: Semaphore::new(APART),
            clock,
            usd_per_token: settings.usd_per_million_tokens.map(|usd| usd / 1e6),
        }
    }

    /// Waits for a free lane, which is free again when the [`Lane`] is dropped. A lane `apart` is one of those
    /// that failing texts have, and teaches nothing about the pace.
    pub async fn enter(&self, apart: bool) -> Lane<'_> {
        let free = if apart { &self.apart } else { &self.free };
        let permit = free.acquire().await;
        permit.expect("the semaphore is never closed").forget();
        Lane {
            lanes: self,
            sent: None,
            apart,
        }
    }

    /// Makes requests smaller for a while, because the provider refused a larger one.
    pub fn learn(&self, learned: Learned) {
        let now = self.clock.now();
        if lock(&self.state).pace.learn_ceiling(learned, now) {
            tracing::info!(
                most = ?learned,
                "the provider refused a larger request, sending smaller ones; max_batch_inputs and \
                 max_batch_tokens of [providers.embedding] set the limits"
            );
        }
    }

    /// Opens lanes, or closes free ones. A lane in use closes when it is dropped.
    fn adjust(&self, state: &mut State) {
        let allowed = state.pace.allowed();
        if allowed > state.open {
            self.free.add_permits(allowed - state.open);
            state.open = allowed;
        }
        state.open -= self.free.forget_permits(state.open - allowed);
        metrics::in_flight_limit(allowed);
    }
}

/// The right to have one request in flight.
pub struct Lane<'a> {
    lanes: &'a AdaptiveConcurrency,
    /// The request in flight, and its tokens.
    sent: Option<(Sent, usize)>,
    /// Whether it is a lane of the failing.
    pub apart: bool,
}

impl Lane<'_> {
    /// How many texts of these `tokens` the request may hold, one at least.
    pub fn fits(&self, tokens: &mut dyn Iterator<Item = usize>) -> usize {
        let now = self.lanes.clock.now();
        lock(&self.lanes.state).pace.fits(tokens, now)
    }

    /// Records that a request with texts of these `tokens` is sent.
    pub fn send(&mut self, tokens: &[usize]) {
        let now = self.lanes.clock.now();
        let texts = tokens.iter().copied();
        let pace = &mut lock(&self.lanes.state).pace;
        let sent = match self.apart {
            true => pace.sent_apart(texts, now),
            false => pace.sent(texts, now),
        };
        self.sent = Some((sent, tokens.iter().sum()));
    }

    /// Records the end of the request. Returns how long it took, and whether that is
    /// longer than the provider's pace explains.
    pub fn end<T>(&mut self, result: &Result<T, EmbedError>) -> (Duration, bool) {
        let Some((sent, tokens)) = self.sent.take() else {
            return (Duration::ZERO, false);
        };
        let now = self.lanes.clock.now();
        let mut state = lock(&self.lanes.state);
        let unexplained = !state.pace.explains(&sent, now);
        if let Err(EmbedError::TimedOut { .. }) = result {
            metrics::abandoned(tokens, self.lanes.usd_per_token);
        }
        if self.apart {
            return (now - sent.at, unexplained);
        }
        match result {
            Ok(_) => state.pace.answered(&sent, now),
            Err(EmbedError::TimedOut { .. }) => state.pace.timed_out(&sent, now),
            Err(EmbedError::Unavailable { .. }) => state.pace.refused(&sent, now),
            Err(_) => state.pace.ended(now),
        }
        self.lanes.adjust(&mut state);
        (now - sent.at, unexplained)
    }
}

impl Drop for Lane<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.lanes.state);
        // The caller was cancelled, and its request with it.
        if let Some((_, tokens)) = self.sent.take() {
            metrics::abandoned(tokens, self.lanes.usd_per_token);
            if !self.apart {
                state.pace.ended(self.lanes.clock.now());
            }
        }
        if self.apart {
            return self.lanes.apart.add_permits(1);
        }
        if state.open > state.pace.allowed() {
            state.open -= 1;
        } else {
            self.lanes.free.add_permits(1);
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;
    use futures::FutureExt;

    fn lanes() -> AdaptiveConcurrency {
        let limits = Limits {
            max_inputs: 256,
            max_tokens: 100_000,
        };
        AdaptiveConcurrency::new(
            limits,
            &crate::embed::provider::tests::settings(),
            Clock::System,
        )
    }

    #[tokio::test]
    async fn waiting_requests_enter_in_order() {
        let lanes = lanes();
        let first = lanes.enter(false).await;
        let mut second = Box::pin(lanes.enter(false));
        let mut third = Box::pin(lanes.enter(false));
        assert!((&mut second).now_or_never().is_none());
        assert!((&mut third).now_or_never().is_none());
        drop(first);
        assert!(
            lanes.enter(false).now_or_never().is_none(),
            "not before the others"
        );
        let second = second.now_or_never().unwrap();
        assert!((&mut third).now_or_never().is_none());
        drop(second);
        third.now_or_never().unwrap();
    }

    #[tokio::test]
    async fn a_request_whose_caller_was_dropped_is_not_in_flight_any_more() {
        let lanes = lanes();
        let mut lane = lanes.enter(false).await;
        lane.send(&[10]);
        assert_eq!(lock(&lanes.state).pace.in_flight(), 1);
        drop(lane);
        assert_eq!(lock(&lanes.state).pace.in_flight(), 0);
        lanes.enter(false).now_or_never().unwrap();
    }
}
