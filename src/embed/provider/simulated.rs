//! An embedding server in simulated time. Like real servers, it continues to compute
//! what a client has abandoned.

use std::time::Duration;

/// How a server divides its processors among its requests, oldest first.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    /// One processor for all of them.
    Shared,
    /// One after the other.
    Serial,
    /// This many at once.
    Parallel(usize),
}

/// The server, and the time.
#[derive(Clone)]
pub struct Server {
    kind: Kind,
    /// Seconds of a request, and of each of its texts.
    fixed: f64,
    text: f64,
    /// A second, and how many times as long everything takes from then on.
    change: (f64, f64),
    now: f64,
    answered_at: f64,
    jobs: Vec<Job>,
    submitted: u32,
}

#[derive(Clone)]
struct Job {
    id: u32,
    /// Seconds of the whole server that it still takes.
    left: f64,
    /// When the client stops waiting; infinite once it has stopped.
    timeout_at: f64,
}

/// How a request ended for its client.
pub enum Ended {
    Answered(u32),
    TimedOut(u32),
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            kind,
            fixed,
            text,
            change,
            ..
        } = self;
        write!(
            f,
            "{kind:?}, {fixed} s a request, {text} s a text, {change:?}"
        )
    }
}

impl Server {
    /// A server that takes `fixed` seconds for a request and `text` for each text.
    pub fn new(kind: Kind, fixed: f64, text: f64) -> Self {
        Self {
            kind,
            fixed,
            text,
            change: (f64::INFINITY, 1.0),
            now: 0.0,
            answered_at: 0.0,
            jobs: Vec::new(),
            submitted: 0,
        }
    }

    /// From second `at` on, everything takes `factor` times as long.
    pub fn changing_at(self, at: f64, factor: f64) -> Self {
        Self {
            change: (at, factor),
            ..self
        }
    }

    /// Seconds since the start.
    pub fn now(&self) -> f64 {
        self.now
    }

    /// When the last answer came.
    pub fn answered_at(&self) -> f64 {
        self.answered_at
    }

    /// Seconds for `texts` texts in requests of `full` texts, always as many in
    /// flight as help.
    pub fn best_secs(&self, texts: usize, full: usize) -> f64 {
        let requests = texts as f64 / full as f64;
        let alone = requests * self.fixed + texts as f64 * self.text;
        let secs = match self.kind {
            Kind::Shared | Kind::Serial => alone,
            Kind::Parallel(at_once) => alone / at_once as f64,
        };
        let (at, factor) = self.change;
        if secs > at {
            at + (secs - at) * factor
        } else {
            secs
        }
    }

    /// A request with `texts` texts arrives.
    pub fn submit(&mut self, texts: usize, timeout: Duration) -> u32 {
        self.submitted += 1;
        // Up to a tenth more or less, the same in every run.
        let noise =
            0.9 + 0.2 * f64::from(self.submitted.wrapping_mul(2_654_435_769) >> 16) / 65_536.0;
        self.jobs.push(Job {
            id: self.submitted,
            left: (self.fixed + self.text * texts as f64) * noise,
            timeout_at: self.now + timeout.as_secs_f64(),
        });
        self.submitted
    }

    /// Lets time pass until the next request ends for its client; `None` when no
    /// client waits.
    pub fn advance(&mut self) -> Option<Ended> {
        while self.jobs.iter().any(|job| job.timeout_at < f64::INFINITY) {
            let speeds: Vec<f64> = (0..self.jobs.len())
                .map(|place| self.speed(place))
                .collect();
            let before_change = self.change.0 - self.now;
            let mut step = if before_change > 0.0 {
                before_change
            } else {
                f64::INFINITY
            };
            for (job, speed) in self.jobs.iter().zip(&speeds) {
                step = step.min(job.timeout_at - self.now);
                if *speed > 0.0 {
                    step = step.min(job.left / speed);
                }
            }
            self.now += step.max(0.0);
            for (job, speed) in self.jobs.iter_mut().zip(&speeds) {
                job.left -= step.max(0.0) * speed;
            }
            if let Some(done) = self.jobs.iter().position(|job| job.left <= 1e-9) {
                let job = self.jobs.remove(done);
                if job.timeout_at < f64::INFINITY {
                    self.answered_at = self.now;
                    return Some(Ended::Answered(job.id));
                }
                continue;
            }
            let now = self.now + 1e-9;
            if let Some(job) = self.jobs.iter_mut().find(|job| job.timeout_at <= now) {
                job.timeout_at = f64::INFINITY;
                return Some(Ended::TimedOut(job.id));
            }
        }
        None
    }

    fn speed(&self, place: usize) -> f64 {
        let share = match self.kind {
            Kind::Shared => 1.0 / self.jobs.len() as f64,
            Kind::Serial => f64::from(u8::from(place == 0)),
            Kind::Parallel(at_once) => f64::from(u8::from(place < at_once)),
        };
        share
            / if self.now >= self.change.0 {
                self.change.1
            } else {
                1.0
            }
    }
}
