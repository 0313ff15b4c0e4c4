//! What searches of two versions found, and whether the new one finds less.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config;

/// Classes of times: each is a quarter of a doubling, from a millisecond to a minute.
const CLASSES: usize = 64;
const CLASSES_OF_DOUBLING: f64 = 4.0;

/// Searches of each version, below which nothing is concluded.
const ENOUGH: u64 = 100;

/// Errors that are no accident.
const ERRORS: u64 = 5;

/// What searches of one version found.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Tally {
    /// All of them, failed ones included.
    pub searches: u64,
    /// Those that failed, or did without a part.
    pub failed: u64,
    /// Those without any result.
    pub empty: u64,
    /// Those whose best hit has a relevance; without a result it is 0.
    pub judged: u64,
    /// The sum of these.
    pub relevance: f64,
    /// Searches by the class of their time.
    times: Vec<u64>,
}

/// What one search found.
#[derive(Debug, Clone, Copy, Default)]
pub struct Seen {
    /// It failed, or did without a part.
    pub failed: bool,
    /// It found nothing.
    pub empty: bool,
    /// The relevance of its best hit, 0 without a hit; `None` if it is not known.
    pub relevance: Option<f32>,
    /// How long it took.
    pub took: Duration,
}

/// What the searches of both versions found.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Tallies {
    /// By the version that is served.
    pub served: Tally,
    /// By the one that is built.
    pub canary: Tally,
}

impl Tally {
    /// Counts a search.
    pub fn observe(&mut self, seen: Seen) {
        self.searches += 1;
        self.failed += u64::from(seen.failed);
        self.empty += u64::from(seen.empty);
        if let Some(relevance) = seen.relevance {
            self.judged += 1;
            self.relevance += f64::from(relevance);
        }
        let ms = seen.took.as_secs_f64() * 1e3;
        let class = (ms.max(1.0).log2() * CLASSES_OF_DOUBLING) as usize;
        self.times.resize(CLASSES, 0);
        self.times[class.min(CLASSES - 1)] += 1;
    }

    fn add(&mut self, other: &Self) {
        self.searches += other.searches;
        self.failed += other.failed;
        self.empty += other.empty;
        self.judged += other.judged;
        self.relevance += other.relevance;
        self.times.resize(CLASSES, 0);
        for (sum, more) in self.times.iter_mut().zip(&other.times) {
            *sum += more;
        }
    }

    /// The mean relevance of the best hits; `None` if none is known.
    pub fn mean_relevance(&self) -> Option<f64> {
        (self.judged > 0).then(|| self.relevance / self.judged as f64)
    }

    /// The share of searches that failed or did without a part.
    pub fn error_rate(&self) -> f64 {
        self.failed as f64 / self.searches.max(1) as f64
    }

    /// The share of searches without any result.
    pub fn empty_rate(&self) -> f64 {
        self.empty as f64 / self.searches.max(1) as f64
    }

    /// The median time in milliseconds, to a quarter of a doubling.
    pub fn median_ms(&self) -> Option<f64> {
        let half = self.times.iter().sum::<u64>().div_ceil(2);
        let mut before = 0;
        let reaches_half = |count: &u64| {
            before += count;
            before >= half
        };
        let class = self.times.iter().position(reaches_half)?;
        Some(((class as f64 + 0.5) / CLASSES_OF_DOUBLING).exp2())
    }
}

impl Tallies {
    /// Reads what Postgres holds. What another ELF wrote in another form counts anew.
    pub fn read(held: serde_json::Value) -> Self {
        serde_json::from_value(held).unwrap_or_default()
    }

    /// Adds what another process, or a later time, has seen.
    pub fn add(&mut self, other: &Self) {
        self.served.add(&other.served);
        self.canary.add(&other.canary);
    }

    /// Whether there is nothing to add.
    pub fn is_empty(&self) -> bool {
        self.served.searches + self.canary.searches == 0
    }

    /// Why the version that is built should answer no more searches; `None` as long as it does well, or
    /// too few searches say otherwise.
    pub fn complaint(&self, limits: &config::Canary) -> Option<String> {
        let Self { served, canary } = self;
        if canary.searches < ENOUGH {
            return None;
        }
        let expected = served.error_rate() * limits.max_errors * canary.searches as f64;
        if canary.failed >= ERRORS && canary.failed as f64 > expected {
            return Some(format!(
                "errors: {:.1}% instead of {:.1}%",
                canary.error_rate() * 100.0,
                served.error_rate() * 100.0
            ));
        }
        // With a share of all, the served version has no searches to compare with.
        if served.searches < ENOUGH {
            return None;
        }
        if let (Some(old), Some(new)) = (served.mean_relevance(), canary.mean_relevance())
            && new < old * limits.min_relevance
        {
            return Some(format!("relevance: {new:.3} instead of {old:.3}"));
        }
        if let (Some(old), Some(new)) = (served.median_ms(), canary.median_ms())
            && new > old * limits.max_latency
        {
            return Some(format!("median time: {new:.1} ms instead of {old:.1} ms"));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;

    fn limits() -> config::Canary {
        config::Canary {
            config: None,
            min_relevance: 0.9,
            max_errors: 1.5,
            max_latency: 2.0,
        }
    }

    fn tally(searches: u64, failed: u64, relevance: f32, ms: u64) -> Tally {
        let mut tally = Tally::default();
        for n in 0..searches {
            tally.observe(Seen {
                failed: n < failed,
                empty: false,
                relevance: Some(relevance),
                took: Duration::from_millis(ms),
            });
        }
        tally
    }

    fn complaint(canary: Tally) -> Option<String> {
        let served = tally(900, 9, 0.8, 20);
        Tallies { served, canary }.complaint(&limits())
    }

    #[test]
    fn a_version_that_does_as_well_goes_on() {
        assert_eq!(complaint(tally(100, 1, 0.8, 20)), None);
        assert_eq!(complaint(tally(1000, 12, 0.75, 30)), None);
    }

    #[test]
    fn too_few_searches_say_nothing() {
        assert_eq!(complaint(tally(99, 99, 0.0, 2000)), None);
    }

    #[test]
    fn errors_count_also_if_the_canary_answers_all() {
        let complaint = |failed| {
            let (served, canary) = (Tally::default(), tally(100, failed, 0.1, 20));
            Tallies { served, canary }.complaint(&limits())
        };
        assert!(
            complaint(5)
                .unwrap()
                .contains("errors: 5.0% instead of 0.0%")
        );
        assert_eq!(complaint(0), None);
    }

    #[test]
    fn each_way_to_be_worse_is_named() {
        assert!(
            complaint(tally(100, 5, 0.8, 20))
                .unwrap()
                .contains("errors")
        );
        // Four errors may be an accident.
        assert_eq!(complaint(tally(100, 4, 0.8, 20)), None);
        let worse = complaint(tally(100, 1, 0.7, 20)).unwrap();
        assert_eq!(worse, "relevance: 0.700 instead of 0.800");
        assert!(
            complaint(tally(100, 1, 0.8, 60))
                .unwrap()
                .contains("median")
        );
    }

    #[test]
    fn the_sum_of_parts_is_the_whole() {
        let mut sum = Tally::default();
        sum.add(&tally(10, 1, 0.5, 5));
        sum.add(&tally(30, 0, 0.5, 50));
        assert_eq!((sum.searches, sum.failed, sum.judged), (40, 1, 40));
        let median = sum.median_ms().unwrap();
        assert!((40.0..60.0).contains(&median), "{median}");
        assert_eq!(sum.mean_relevance(), Some(0.5));
        assert_eq!(Tally::default().median_ms(), None);
    }
}
