//! Samples of the last half hour, for the charts of the admin page.

use std::collections::VecDeque;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;

use super::{LOOK_EVERY, LOOKS_PER_SAMPLE};
use crate::store::OutboxCounts;

/// Half an hour.
const MAX_SAMPLES: usize = 300;

/// Samples at equal intervals, the oldest first.
#[derive(Debug, Clone, Serialize)]
pub struct History {
    /// Seconds between two samples.
    pub interval_secs: u64,
    pub samples: VecDeque<Sample>,
    #[serde(skip)]
    last: Option<(DateTime<Utc>, u64)>,
}

/// One point of each chart.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sample {
    pub at: DateTime<Utc>,
    /// Outbox rows that are not dead, whichever worker indexes them; `None` before the first count.
    pub pending: Option<i64>,
    /// Age of the oldest due row, in seconds; 0 when no row is due, `None` before the first count.
    pub oldest_secs: Option<f64>,
    /// Notes per second that this worker converged since the last sample.
    pub notes_per_sec: f64,
    /// Seconds from commit to searchable since the last sample, in this worker: the
    /// median…
    pub fresh_p50: Option<f64>,
    /// …and the longest.
    pub fresh_max: Option<f64>,
}

impl Default for History {
    fn default() -> Self {
        Self {
            interval_secs: (LOOK_EVERY * LOOKS_PER_SAMPLE).as_secs(),
            samples: VecDeque::new(),
            last: None,
        }
    }
}

impl History {
    /// Adds a sample. `notes` is this worker's count since its start, `ages` the seconds from
    /// commit to searchable of the changes since the last sample.
    pub fn push(
        &mut self,
        at: DateTime<Utc>,
        outbox: Option<&OutboxCounts>,
        notes: u64,
        mut ages: Vec<Duration>,
    ) {
        ages.sort_unstable();
        let since = self.last.replace((at, notes));
        let notes_per_sec = since.map_or(0.0, |(then, before)| {
            let secs = (at - then).as_seconds_f64();
            notes.saturating_sub(before) as f64 / secs.max(f64::MIN_POSITIVE)
        });
        self.samples.push_back(Sample {
            at,
            pending: outbox.map(|o| o.pending + o.leased + o.failed),
            oldest_secs: outbox.map(|o| o.oldest_pending_secs.unwrap_or(0.0)),
            notes_per_sec,
            fresh_p50: ages.get(ages.len() / 2).map(Duration::as_secs_f64),
            fresh_max: ages.last().map(Duration::as_secs_f64),
        });
        if self.samples.len() > MAX_SAMPLES {
            self.samples.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_tells_what_happened_since_the_one_before() {
        let mut history = History::default();
        let at = |secs| DateTime::from_timestamp(secs, 0).expect("a time");
        history.push(at(0), None, 100, vec![]);
        let ages = [3, 1, 2].map(Duration::from_secs).to_vec();
        history.push(at(10), None, 150, ages);
        let last = history.samples.back().expect("two were pushed");
        assert_eq!(last.notes_per_sec, 5.0);
        assert_eq!((last.fresh_p50, last.fresh_max), (Some(2.0), Some(3.0)));
    }

    #[test]
    fn what_is_not_counted_yet_is_not_zero() {
        let mut history = History::default();
        history.push(DateTime::UNIX_EPOCH, None, 0, vec![]);
        assert_eq!(history.samples[0].pending, None);
        assert_eq!(history.samples[0].oldest_secs, None);
    }

    #[test]
    fn it_does_not_grow_for_ever() {
        let mut history = History::default();
        for secs in 0..1000 {
            let at = DateTime::from_timestamp(secs, 0).expect("a time");
            history.push(at, None, 0, vec![]);
        }
        assert_eq!(history.samples.len(), MAX_SAMPLES);
        assert_eq!(history.samples[0].at.timestamp(), 700);
    }
}
