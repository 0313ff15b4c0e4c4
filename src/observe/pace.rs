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

    /// Does `work` if it is time.
    pub async fn keep(&mut self, work: impl Future<Output = ()>) {
        let began = Instant::now();
        if self.next.is_some_and(|next| began < next) {
            return;
        }
        work.await;
        self.next = Some(next(began, began.elapsed(), self.at_least));
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
