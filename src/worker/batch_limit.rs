//! How many batches may be in flight: as many as raise the throughput.
//!
//! A batch mostly waits: for Postgres, the provider, the vector engine. How many of them these can work on is learned from
//! trials: now and then the limit changes for a while, and stays if that was better. Stores on one or two cores gain
//! nothing from more batches, so the limit never goes far there; with stores on many cores, or far away, it rises.

use std::time::Instant;

/// The limit at first, and the least that a trial goes down to.
const FIRST: usize = 4;

/// More batches must raise the throughput by this factor. Fewer may lower it by less.
const WORTHWHILE: f64 = 1.1;

/// Rounds to the next trial after one that was not better; doubled each time.
const REST: std::ops::RangeInclusive<usize> = 4..=64;

/// What all batches in flight may hold in points. [`FIRST`] may hold more.
const MAX_BYTES: u64 = 64 << 20;

/// What was done, all in all.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Done {
    pub batches: u64,
    /// Notes and points.
    pub work: u64,
    pub bytes: u64,
}

/// The limit, and what is known of it.
pub(super) struct BatchLimit {
    most: usize,
    allowed: usize,
    /// A round is as many batches as make the throughput known. `None` while there is less work than the limit allows.
    round: Option<(Instant, Done)>,
    /// A trial of another limit: the one before, and its throughput.
    trial: Option<(usize, f64)>,
    /// The batches of the limit before are still in flight in the first round of a trial.
    is_mixed: bool,
    goes_up: bool,
    rounds_to_trial: usize,
    rest: usize,
}

impl BatchLimit {
    /// `most` is never exceeded.
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            allowed: FIRST.min(most),
            round: None,
            trial: None,
            is_mixed: false,
            goes_up: true,
            rounds_to_trial: 1,
            rest: *REST.start(),
        }
    }

    pub(super) fn allowed(&self) -> usize {
        self.allowed
    }

    /// There is no work for another batch: the throughput says nothing about the limit.
    pub(super) fn idle(&mut self) {
        self.round = None;
        if let Some((before, _)) = self.trial.take() {
            self.allowed = before;
        }
    }

    /// All batches that may be in flight are. `done` is what the worker has done so far.
    pub(super) fn full(&mut self, done: Done, now: Instant) {
        let Some((since, before)) = self.round else {
            self.round = Some((now, done));
            return;
        };
        let batches = done.batches - before.batches;
        let enough = if self.is_mixed { 1 } else { 2 };
        if batches < enough * self.allowed as u64 {
            return;
        }
        self.round = Some((now, done));
        if std::mem::take(&mut self.is_mixed) {
            return;
        }
        let secs = now.saturating_duration_since(since).as_secs_f64().max(1e-3);
        let throughput = (done.work - before.work) as f64 / secs;
        let bytes = (done.bytes - before.bytes) / batches;
        let most = usize::try_from(MAX_BYTES / bytes.max(1)).unwrap_or(usize::MAX);
        self.judge(throughput, self.most.min(most.max(FIRST)));
    }

    fn judge(&mut self, throughput: f64, most: usize) {
        if self.allowed > most {
            self.allowed = most;
            self.trial = None;
            self.is_mixed = true;
            return;
        }
        match self.trial.take() {
            None => {
                self.rounds_to_trial = self.rounds_to_trial.saturating_sub(1);
                if self.rounds_to_trial == 0 {
                    self.begin_trial(throughput, most);
                }
            }
            Some((before, throughput_before)) => {
                let required = match self.allowed > before {
                    true => WORTHWHILE,
                    false => 1.0 / WORTHWHILE.sqrt(),
                };
                if throughput >= throughput_before * required {
                    self.rest = *REST.start();
                    return self.begin_trial(throughput, most);
                }
                self.allowed = before;
                self.is_mixed = true;
                self.goes_up = !self.goes_up;
                self.rounds_to_trial = self.rest;
                self.rest = (self.rest * 2).min(*REST.end());
            }
        }
    }

    fn begin_trial(&mut self, throughput: f64, most: usize) {
        let of = |up: bool| match up {
            true => (2 * self.allowed).min(most),
            false => (self.allowed - self.allowed / 3).max(FIRST.min(most)),
        };
        if of(self.goes_up) == self.allowed {
            self.goes_up = !self.goes_up;
        }
        let allowed = of(self.goes_up);
        if allowed == self.allowed {
            self.rounds_to_trial = *REST.end();
            return;
        }
        self.trial = Some((self.allowed, throughput));
        self.allowed = allowed;
        self.is_mixed = true;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Runs rounds on stores that give this throughput for so many batches in flight. Returns the limits that were used.
    fn run(
        limit: &mut BatchLimit,
        batches: u64,
        bytes: u64,
        throughput: impl Fn(usize) -> f64,
    ) -> Vec<usize> {
        let (mut now, mut done) = (Instant::now(), Done::default());
        let mut used = Vec::new();
        limit.full(done, now);
        for _ in 0..batches {
            done = Done {
                batches: done.batches + 1,
                work: done.work + 512,
                bytes: done.bytes + bytes,
            };
            now += Duration::from_secs_f64(512.0 / throughput(limit.allowed()));
            limit.full(done, now);
            used.push(limit.allowed());
        }
        used
    }

    fn share(used: &[usize], of: usize) -> f64 {
        used.iter().filter(|limit| **limit == of).count() as f64 / used.len() as f64
    }

    #[test]
    fn stores_that_gain_nothing_keep_the_first_limit() {
        let used = run(&mut BatchLimit::new(16), 5_000, 1 << 20, |_| 5_000.0);
        assert!(share(&used, 4) > 0.9, "{}", share(&used, 4));
    }

    #[test]
    fn stores_with_room_get_as_many_as_they_can_work_on() {
        let enough = |most: usize, wanted: std::ops::RangeInclusive<usize>| {
            let throughput = |batches: usize| batches.min(most) as f64 * 1_000.0;
            let used = run(&mut BatchLimit::new(16), 12_000, 1 << 20, throughput);
            let last = &used[4_000..];
            let enough = last.iter().filter(|limit| wanted.contains(*limit)).count();
            enough as f64 / last.len() as f64
        };
        assert!(enough(16, 16..=16) > 0.8, "{}", enough(16, 16..=16));
        assert!(enough(8, 8..=9) > 0.8, "{}", enough(8, 8..=9));
    }

    #[test]
    fn the_limit_falls_when_the_stores_lose_their_room() {
        let mut limit = BatchLimit::new(16);
        run(&mut limit, 1_000, 1 << 20, |batches| {
            batches as f64 * 1_000.0
        });
        assert!(limit.allowed() > 8);
        limit.idle();
        let used = run(&mut limit, 20_000, 1 << 20, |_| 2_000.0);
        assert!(share(&used[10_000..], 4) > 0.8, "{:?}", &used[10_000..]);
    }

    #[test]
    fn neither_the_setting_nor_the_bound_of_memory_is_exceeded() {
        let used = run(&mut BatchLimit::new(2), 500, 1 << 20, |batches| {
            batches as f64
        });
        assert!(used.iter().all(|limit| *limit <= 2));
        let used = run(&mut BatchLimit::new(16), 500, 8 << 20, |batches| {
            batches as f64
        });
        assert!(used.iter().all(|limit| *limit <= 8), "{used:?}");
        let used = run(&mut BatchLimit::new(16), 500, 100 << 20, |batches| {
            batches as f64
        });
        assert!(used.iter().all(|limit| *limit == 4), "{used:?}");
    }

    #[test]
    fn a_trial_ends_with_the_work() {
        let mut limit = BatchLimit::new(16);
        run(&mut limit, 9, 1 << 20, |batches| batches as f64);
        assert_eq!(limit.allowed(), 8);
        limit.idle();
        assert_eq!(limit.allowed(), 4);
    }
}
