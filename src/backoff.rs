//! How long to wait before a retry.

use std::time::Duration;

/// The wait before the next try, after `attempt` tries (1 or more) have failed:
/// between zero and `base` × 2^(`attempt` - 1), and never more than `max`. `jitter`,
/// from 0 to 1, picks the point in between. Drawn at random, it keeps callers that
/// failed together from retrying together ("full jitter", Brooker, Exponential
/// Backoff and Jitter, AWS Architecture Blog 2015).
pub fn delay(attempt: u32, base: Duration, max: Duration, jitter: f64) -> Duration {
    let doublings = attempt.saturating_sub(1).min(31);
    let longest = base.saturating_mul(1 << doublings).min(max);
    longest.mul_f64(jitter.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: Duration = Duration::from_millis(500);
    const MAX: Duration = Duration::from_secs(60);

    #[test]
    fn every_failure_doubles_the_longest_wait() {
        let waits: Vec<_> = (1..=4)
            .map(|n| delay(n, BASE, MAX, 1.0).as_millis())
            .collect();
        assert_eq!(waits, [500, 1000, 2000, 4000]);
    }

    #[test]
    fn no_wait_is_longer_than_the_maximum() {
        for attempt in [8, 9, 64, u32::MAX] {
            assert_eq!(delay(attempt, BASE, MAX, 1.0), MAX);
        }
        assert_eq!(delay(1, MAX * 2, MAX, 1.0), MAX);
    }

    #[test]
    fn jitter_reaches_from_nothing_to_the_whole_wait() {
        assert_eq!(delay(3, BASE, MAX, 0.0), Duration::ZERO);
        assert_eq!(delay(3, BASE, MAX, 0.25), BASE);
        assert_eq!(delay(3, BASE, MAX, f64::NAN.max(2.0)), BASE * 4);
    }
}
