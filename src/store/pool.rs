//! The connections to Postgres, and which of them are trusted without a question.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use sqlx::postgres::PgPoolOptions;
use sqlx::{Connection, PgConnection};

use super::{CONNECT_LIMIT, RETURN_LIMIT};

/// A connection is asked whether it still works before it is used, unless Postgres has answered on one of
/// the pool within this time. The pool gives out the connection that was idle longest, so that
/// otherwise each statement of a lone note would wait for such a question. Shorter than the polls of an idle worker,
/// so that each of them asks.
const TRUSTED: Duration = Duration::from_millis(500);

/// A connection that was idle for longer is asked in any case: a firewall may have forgotten it alone.
const TRUSTED_IDLE: Duration = Duration::from_secs(30);

/// A pool that counts its connections in `connections`.
pub(super) fn pool_options(max_connections: u32, connections: &Arc<AtomicU64>) -> PgPoolOptions {
    let connections = connections.clone();
    let trust = Arc::new(Trust::default());
    let of_returned = trust.clone();
    PgPoolOptions::new()
        .max_connections(max_connections)
        .acquire_timeout(CONNECT_LIMIT)
        .after_connect(move |_, _| {
            connections.fetch_add(1, Ordering::Relaxed);
            Box::pin(async { Ok(()) })
        })
        .after_release(move |connection, _| {
            let trust = of_returned.clone();
            Box::pin(async move { trust.record(has_answered(connection).await) })
        })
        .test_before_acquire(false)
        .before_acquire(move |connection, meta| {
            let trust = trust.clone();
            Box::pin(async move {
                if trust.has(meta.idle_for) {
                    return Ok(true);
                }
                trust.record(connection.ping().await.map(|()| true))
            })
        })
}

/// Whether the connections of a pool are likely to work.
#[derive(Default)]
struct Trust(Mutex<LastSeen>);

#[derive(Clone, Copy, Default)]
struct LastSeen {
    answer: Option<Instant>,
    /// A connection that did not work: those that were idle then may not work either.
    loss: Option<Instant>,
}

impl Trust {
    fn record(&self, answered: Result<bool, sqlx::Error>) -> Result<bool, sqlx::Error> {
        let mut seen = self.lock();
        match answered {
            Ok(true) => seen.answer = Some(Instant::now()),
            _ => seen.loss = Some(Instant::now()),
        }
        answered
    }

    fn has(&self, idle_for: Duration) -> bool {
        let LastSeen { answer, loss } = *self.lock();
        idle_for <= TRUSTED_IDLE
            && answer.is_some_and(|at| at.elapsed() <= TRUSTED)
            && loss.is_none_or(|at| idle_for < at.elapsed())
    }

    fn lock(&self) -> MutexGuard<'_, LastSeen> {
        self.0.lock().expect("no holder panics")
    }
}

/// Whether the pool can use a returned connection again. It cannot if its statement timed out:
/// the pool's own ping has no time limit. Asks Postgres nothing. No transaction is open: [`super::transaction`].
async fn has_answered(connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
    let answered = tokio::time::timeout(RETURN_LIMIT, connection.flush()).await;
    Ok(matches!(answered, Ok(Ok(()))))
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
