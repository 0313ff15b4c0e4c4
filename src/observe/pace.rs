//! How often something may be done that costs more the more there is.

use std::time::{Duration, Instant};

/// Rests this many times as long as the work took: a twentieth of one connection.
const REST: u32 = 19;

/// When it is next time.
#[derive(Debug)]
pub struct Pace {
    at_least: Duration,
    next: Option<Instant>,
}

impl Pace {
    /// At most once in `at_least`, and less often when it takes long.
    pub fn new(at_least: Duration) -> Self {
        Self {
            at_least,
            next: None,
        }
    }

    /// Waits until it is time, does `work` and says that it is done. Work that failed is
    /// tried again soon: it took long for another reason.
    pub async fn keep(&mut self, work: impl Future<Output = bool>) {
        if let Some(next) = self.next {
            tokio::time::sleep_until(next.into()).await;
        }
        let began = Instant::now();
        let took = match work.await {
            true => began.elapsed(),
            false => Duration::ZERO,
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
    fn what_takes_long_is_done_rarely() {
        let began = Instant::now();
        let secs = Duration::from_secs;
        assert_eq!(next(began, secs(0), secs(15)), began + secs(15));
        assert_eq!(next(began, secs(3), secs(15)), began + secs(60));
    }
}
