//! Spaces out work that takes longer the more rows there are.

use std::time::{Duration, Instant};

/// The pause is this many times as long as the work, so the work takes at most a twentieth of
/// one connection's time.
const REST: u32 = 19;

/// The time of the next run.
#[derive(Debug)]
pub struct Pace {
    at_least: Duration,
    next: Option<Instant>,
}

impl Pace {
    /// Runs at most once in `at_least`, and less often when the work takes long.
    pub fn new(at_least: Duration) -> Self {
        Self {
            at_least,
            next: None,
        }
    }

    /// Waits until the next run is due, then does `work`, which returns whether it succeeded.
    /// After a failure the pause is as long as the work took: Postgres may still do what timed out.
    pub async fn run_when_due(&mut self, work: impl Future<Output = bool>) {
        if let Some(next) = self.next {
            tokio::time::sleep_until(next.into()).await;
        }
        let began = Instant::now();
        let took = match work.await {
            true => began.elapsed(),
            false => began.elapsed() * 2 / (REST + 1),
        };
        self.next = Some(next(began, took, self.at_least).max(Instant::now()));
    }
}

fn next(began: Instant, took: Duration, at_least: Duration) -> Instant {
    began + (took * (REST + 1)).max(at_least)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_work_is_repeated_rarely() {
        let began = Instant::now();
        let secs = Duration::from_secs;
        assert_eq!(next(began, secs(0), secs(15)), began + secs(15));
        assert_eq!(next(began, secs(3), secs(15)), began + secs(60));
    }
}
