//! Which idle connections are trusted without a question.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::lock::lock;

/// A connection is asked whether it still works before it is used, unless Postgres has answered on one of
/// the pool within this time. Otherwise each statement of a lone note would wait for such a question.
/// Shorter than the polls of an idle worker, so that each of them asks.
const TRUSTED: Duration = Duration::from_millis(500);

/// A connection that was idle for longer is asked in any case: a firewall may have forgotten it alone.
const TRUSTED_IDLE: Duration = Duration::from_secs(30);

/// Whether the connections of a pool are likely to work.
#[derive(Debug, Default)]
pub(super) struct Trust(Mutex<LastSeen>);

#[derive(Debug, Clone, Copy, Default)]
struct LastSeen {
    answer: Option<Instant>,
    /// A connection that did not work: those that were idle then may not work either.
    loss: Option<Instant>,
}

impl Trust {
    pub(super) fn record(&self, answered: bool) {
        let mut seen = lock(&self.0);
        match answered {
            true => seen.answer = Some(Instant::now()),
            false => seen.loss = Some(Instant::now()),
        }
    }

    pub(super) fn has(&self, idle_for: Duration) -> bool {
        let LastSeen { answer, loss } = *lock(&self.0);
        idle_for <= TRUSTED_IDLE
            && answer.is_some_and(|at| at.elapsed() <= TRUSTED)
            && loss.is_none_or(|at| idle_for < at.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_connection_ends_the_trust_in_those_that_were_idle_with_it() {
        let secs = Duration::from_secs;
        let now = Instant::now();
        let trusts =
            |answer, loss, idle_for| Trust(Mutex::new(LastSeen { answer, loss })).has(idle_for);
        let answered = Some(now);
        assert!(!trusts(None, None, secs(0)), "nothing is known yet");
        assert!(trusts(answered, None, secs(20)));
        assert!(!trusts(answered, None, secs(31)));
        let long_ago = now.checked_sub(secs(10));
        assert!(!trusts(long_ago, None, secs(1)), "an idle worker asks");
        assert!(!trusts(answered, long_ago, secs(20)));
        assert!(trusts(answered, long_ago, secs(5)), "made or used since");
    }
}
