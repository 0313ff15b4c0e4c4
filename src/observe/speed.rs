//! The rate of a rebuild or reindex, measured from its progress.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};

use super::Job;
use crate::store::RunningJob;

/// The rate is measured over this time.
const WINDOW: Duration = Duration::from_secs(60);

/// The latest looks at one job.
#[derive(Debug, Clone, Default)]
pub struct Speed {
    /// The start time of the job, which identifies it: no two jobs start at the same moment.
    began: Option<DateTime<Utc>>,
    looks: VecDeque<(Instant, i64)>,
}

impl Speed {
    /// Adds the progress at `now`, and returns the job with its rate.
    pub fn of(&mut self, running: RunningJob, now: Instant) -> Job {
        if self.began != Some(running.started_at) {
            self.began = Some(running.started_at);
            self.looks.clear();
        }
        self.looks.push_back((now, running.done));
        // One look that is older than the window stays as the start of the measurement.
        while self.looks.len() > 2 && now - self.looks[1].0 >= WINDOW {
            self.looks.pop_front();
        }
        let rate_per_sec = self.rate();
        let left = (running.total - running.done).max(0) as f64;
        let eta_secs = rate_per_sec
            .filter(|rate| *rate > 0.0)
            .map(|rate| left / rate);
        Job {
            running,
            rate_per_sec,
            eta_secs,
        }
    }

    fn rate(&self) -> Option<f64> {
        let (first, last) = (self.looks.front()?, self.looks.back()?);
        let secs = (last.0 - first.0).as_secs_f64();
        // A job's next phase counts from 0 again, which would give a negative rate.
        (secs > 0.0).then(|| (last.1 - first.1).max(0) as f64 / secs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(began: i64, done: i64) -> RunningJob {
        RunningJob {
            kind: "rebuild".into(),
            subject: "notes".into(),
            holder: "h".into(),
            started_at: DateTime::from_timestamp(began, 0).expect("a time"),
            lease_until: DateTime::from_timestamp(began + 10, 0).expect("a time"),
            done,
            total: 1000,
        }
    }

    #[test]
    fn the_speed_is_that_of_the_last_minute() {
        let (mut speed, start) = (Speed::default(), Instant::now());
        let secs = |s| start + Duration::from_secs(s);
        assert_eq!(speed.of(job(1, 500), secs(0)).rate_per_sec, None);
        let seen = speed.of(job(1, 600), secs(10));
        assert_eq!((seen.rate_per_sec, seen.eta_secs), (Some(10.0), Some(40.0)));
        // No progress for a minute: the rate is 0.
        speed.of(job(1, 600), secs(40));
        let seen = speed.of(job(1, 600), secs(70));
        assert_eq!((seen.rate_per_sec, seen.eta_secs), (Some(0.0), None));
    }

    #[test]
    fn another_job_is_measured_anew() {
        let (mut speed, start) = (Speed::default(), Instant::now());
        speed.of(job(1, 900), start);
        let seen = speed.of(job(2, 0), start + Duration::from_secs(5));
        assert_eq!(seen.rate_per_sec, None);
    }
}
