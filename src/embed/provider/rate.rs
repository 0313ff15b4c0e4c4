//! Requests and tokens per minute.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use tokio::sync::Mutex;

use super::clock::Clock;
use crate::config;

/// Providers count by the minute, and their minutes begin at different seconds.
/// Keeping every interval of this length within the limit satisfies all of them.
const MINUTE: Duration = Duration::from_secs(60);

/// What may be sent in any minute. Waiting requests go in the order in which they came.
pub struct Rate {
    /// Requests and tokens.
    windows: Mutex<[Window; 2]>,
    clock: Clock,
}

impl Rate {
    /// The limits of `settings`, none where they are not set.
    pub fn new(settings: &config::Embedding, clock: Clock) -> Self {
        Self {
            windows: Mutex::new([
                Window::new(settings.requests_per_minute),
                Window::new(settings.tokens_per_minute),
            ]),
            clock,
        }
    }

    /// Waits until a request of `tokens` tokens may be sent, and counts it.
    pub async fn wait(&self, tokens: usize) {
        // Locked while asleep, so that small requests cannot overtake a large one for ever.
        let mut windows = self.windows.lock().await;
        let amounts = [1, tokens as u64];
        loop {
            let now = self.clock.now();
            let free_at = windows
                .iter_mut()
                .zip(amounts)
                .map(|(window, amount)| window.free_at(now, amount))
                .max();
            match free_at {
                Some(free_at) if free_at > now => self.clock.sleep_until(free_at).await,
                _ => break,
            }
        }
        let now = self.clock.now();
        for (window, amount) in windows.iter_mut().zip(amounts) {
            window.count(now, amount);
        }
    }
}

/// What was sent in the last minute, oldest first.
struct Window {
    limit: Option<u64>,
    sent: VecDeque<(Instant, u64)>,
    sum: u64,
}

impl Window {
    fn new(limit: Option<u32>) -> Self {
        Self {
            limit: limit.map(u64::from),
            sent: VecDeque::new(),
            sum: 0,
        }
    }

    /// When `amount` more may be sent: `now`, or when enough of what was sent is
    /// a minute old. An amount that is above the limit by itself waits until
    /// everything that was sent is a minute old.
    fn free_at(&mut self, now: Instant, amount: u64) -> Instant {
        while let Some(&(at, old)) = self.sent.front()
            && at + MINUTE <= now
        {
            self.sum -= old;
            self.sent.pop_front();
        }
        let Some(limit) = self.limit else {
            return now;
        };
        let mut sum = self.sum;
        let mut free_at = now;
        for &(at, old) in &self.sent {
            if sum + amount <= limit {
                break;
            }
            sum -= old;
            free_at = at + MINUTE;
        }
        free_at
    }

    fn count(&mut self, now: Instant, amount: u64) {
        if self.limit.is_some() {
            self.sent.push_back((now, amount));
            self.sum += amount;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    #[test]
    fn no_minute_holds_more_than_the_limit() {
        let start = Instant::now();
        let mut window = Window::new(Some(100));
        let mut now = start;
        let mut sent: Vec<(Instant, u64)> = Vec::new();
        for amount in [60, 40, 30, 30, 50, 100, 10, 90, 100, 1].repeat(5) {
            now = window.free_at(now, amount);
            window.free_at(now, amount);
            window.count(now, amount);
            sent.push((now, amount));
        }
        for &(from, _) in &sent {
            let within = |at: Instant| at >= from && at < from + MINUTE;
            let sum: u64 = sent
                .iter()
                .filter(|(at, _)| within(*at))
                .map(|(_, n)| n)
                .sum();
            assert!(sum <= 100, "{sum} in the minute from {:?}", from - start);
        }
    }

    #[test]
    fn what_fits_waits_for_nothing() {
        let now = Instant::now();
        let mut window = Window::new(Some(10));
        window.count(now, 6);
        assert_eq!(window.free_at(now, 4), now);
        assert_eq!(window.free_at(now, 5), now + MINUTE);
        assert_eq!(window.free_at(now + secs(59), 5), now + MINUTE);
        assert_eq!(window.free_at(now + secs(60), 10), now + secs(60));
    }

    #[test]
    fn more_than_the_limit_at_once_goes_alone() {
        let now = Instant::now();
        let mut window = Window::new(Some(10));
        assert_eq!(window.free_at(now, 11), now);
        window.count(now, 1);
        assert_eq!(window.free_at(now, 11), now + MINUTE);
    }

    #[test]
    fn without_a_limit_nothing_is_kept() {
        let now = Instant::now();
        let mut window = Window::new(None);
        window.count(now, u64::MAX);
        assert_eq!(window.free_at(now, u64::MAX), now);
        assert!(window.sent.is_empty());
    }
}
