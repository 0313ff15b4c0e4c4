//! The circuit breaker: whether ELF sends the provider requests at all.

use std::mem::discriminant;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::clock::Clock;
use super::metrics;
use crate::backoff;
use crate::embed::EmbedError;

/// The longest `Retry-After` that ELF honours.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(3600);

/// How long the circuit stays open before a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// Longest wait before the first probe of an outage.
    pub base: Duration,
    /// Longest wait before any probe that the provider did not ask for.
    pub max: Duration,
    /// Wait before each probe after the provider refused the configuration.
    pub config_recheck: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            base: Duration::from_millis(500),
            // A longer pause would prolong the outage after the provider has recovered.
            max: Duration::from_secs(30),
            config_recheck: Duration::from_secs(30),
        }
    }
}

/// Whether texts are sent, and why not.
#[derive(Debug, Clone, PartialEq)]
pub enum CircuitState {
    /// The provider works, as far as ELF knows.
    Closed,
    /// Nothing is sent until the probe at `probe_at`. The error says whether it
    /// is an outage (`Unavailable`) or a refused configuration (`Config`).
    Open {
        /// The error of the last request.
        error: EmbedError,
        /// When ELF sends the next probe.
        probe_at: Instant,
    },
    /// The probe is in flight.
    HalfOpen {
        /// The error of the last request before the probe.
        error: EmbedError,
    },
}

impl CircuitState {
    /// Why nothing is sent; `None` when the circuit is closed.
    pub fn error(&self) -> Option<&EmbedError> {
        match self {
            Self::Closed => None,
            Self::Open { error, .. } | Self::HalfOpen { error } => Some(error),
        }
    }
}

/// The state, which callers can wait on.
pub struct Circuit {
    state: watch::Sender<CircuitState>,
    /// Openings since the last request that succeeded. A probe does not reset the count,
    /// so that the pauses grow for a provider that answers nothing but probes.
    failures: AtomicU32,
    timing: Timing,
    clock: Clock,
}

impl Circuit {
    /// A closed circuit.
    pub fn new(timing: Timing, clock: Clock) -> Self {
        metrics::circuit(false);
        Self {
            state: watch::Sender::new(CircuitState::Closed),
            failures: AtomicU32::new(0),
            timing,
            clock,
        }
    }

    pub fn state(&self) -> CircuitState {
        self.state.borrow().clone()
    }

    /// Waits until it is closed.
    pub async fn closed(&self) {
        let closed = |state: &CircuitState| *state == CircuitState::Closed;
        let wait = self.state.subscribe().wait_for(closed).await.is_ok();
        assert!(wait, "the sender lives as long as self");
    }

    /// Waits until the circuit is not closed, and returns the reason.
    pub async fn refused(&self) -> EmbedError {
        let mut state = self.state.subscribe();
        let open = state.wait_for(|state| state.error().is_some()).await;
        open.expect("the sender lives as long as self")
            .error()
            .expect("that is what was waited for")
            .clone()
    }

    /// Opens the circuit if it is closed. A caller that gets `true` must start the probes.
    pub fn open(&self, error: &EmbedError) -> bool {
        let opened = self.state.send_if_modified(|state| {
            let closed = *state == CircuitState::Closed;
            if closed {
                *state = self.opened(error.clone());
            }
            closed
        });
        if opened {
            metrics::circuit(true);
            tracing::warn!(error = error.reason(), "embedding paused");
        }
        opened
    }

    /// The probe begins.
    pub fn half_open(&self) {
        self.state.send_modify(|state| {
            if let CircuitState::Open { error, .. } = state {
                *state = CircuitState::HalfOpen {
                    error: error.clone(),
                };
            }
        });
    }

    /// The probe failed.
    pub fn reopen(&self, error: EmbedError) {
        // Warns only when the class of the error has changed.
        if self.state.borrow().error().map(discriminant) == Some(discriminant(&error)) {
            tracing::debug!(error = error.reason(), "embedding still paused");
        } else {
            tracing::warn!(error = error.reason(), "embedding still paused");
        }
        let state = self.opened(error);
        self.state.send_replace(state);
    }

    /// The probe succeeded.
    pub fn close(&self) {
        metrics::circuit(false);
        tracing::info!("embedding resumed");
        self.state.send_replace(CircuitState::Closed);
    }

    /// A request with real texts succeeded.
    pub fn worked(&self) {
        self.failures.store(0, Ordering::Relaxed);
    }

    fn opened(&self, error: EmbedError) -> CircuitState {
        let failures = self
            .failures
            .fetch_add(1, Ordering::Relaxed)
            .saturating_add(1);
        let pause = pause(&error, failures, &self.timing, rand::random());
        CircuitState::Open {
            error,
            probe_at: self.clock.now() + pause,
        }
    }
}

/// How long nothing is sent after `error`, which was failure number `failures` in a row.
fn pause(error: &EmbedError, failures: u32, timing: &Timing, jitter: f64) -> Duration {
    let backoff = backoff::delay(failures, timing.base, timing.max, jitter);
    match error {
        EmbedError::Config { .. } => timing.config_recheck,
        EmbedError::Unavailable {
            retry_after: Some(asked),
            ..
        } => backoff.max((*asked).min(MAX_RETRY_AFTER)),
        _ => backoff,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn busy(retry_after_secs: u64) -> EmbedError {
        EmbedError::Unavailable {
            reason: "busy".into(),
            retry_after: Some(Duration::from_secs(retry_after_secs)),
            perhaps_input: false,
        }
    }

    #[test]
    fn no_probe_is_sent_for_as_long_as_the_provider_asked() {
        let timing = Timing::default();
        assert_eq!(pause(&busy(20), 1, &timing, 1.0), Duration::from_secs(20));
        // A short `Retry-After` does not shorten ELF's own backoff.
        assert_eq!(pause(&busy(1), 5, &timing, 1.0), Duration::from_secs(8));
        assert_eq!(pause(&busy(u64::MAX), 1, &timing, 1.0), MAX_RETRY_AFTER);
    }

    #[test]
    fn an_outage_is_probed_less_and_less_often() {
        let timing = Timing::default();
        let unavailable = EmbedError::unavailable("refused");
        let pauses = [1, 2, 3, 20].map(|n| pause(&unavailable, n, &timing, 1.0).as_millis());
        assert_eq!(pauses, [500, 1000, 2000, 30_000]);
    }

    #[test]
    fn a_refused_configuration_is_probed_at_a_steady_interval() {
        let timing = Timing::default();
        let refused = EmbedError::config("401");
        for failures in [1, 100] {
            assert_eq!(
                pause(&refused, failures, &timing, 0.0),
                timing.config_recheck
            );
        }
    }

    #[tokio::test]
    async fn only_the_first_failure_opens_it() {
        let circuit = Circuit::new(Timing::default(), Clock::System);
        assert!(circuit.open(&busy(20)));
        let first = circuit.state();
        assert!(!circuit.open(&EmbedError::unavailable("refused")));
        assert_eq!(circuit.state(), first);
        assert_eq!(circuit.refused().await, busy(20));
        circuit.half_open();
        assert!(!circuit.open(&busy(1)));
        circuit.close();
        circuit.closed().await;
    }
}
