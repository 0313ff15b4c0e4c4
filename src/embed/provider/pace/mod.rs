//! The provider's pace, learned from its answers: how much the next request may
//! hold, and how many requests may be in flight.
//!
//! A small server computes all requests on one processor, and continues to compute
//! those that the client has abandoned. So ELF makes a request small enough to be
//! answered long before it times out, and adds requests only while that raises the
//! throughput.

use std::time::{Duration, Instant};

use super::ceiling::{Ceiling, Learned};
use super::speed::Speed;
use crate::embed::Limits;

/// An answer should take this part of the timeout: a provider that becomes ten
/// times slower still answers in time.
const TARGET_OF_TIMEOUT: f64 = 1.0 / 12.0;

/// An answer should take no longer than this, however long the timeout is: a crash
/// loses only the requests without an answer.
const MAX_TARGET_SECS: f64 = 1.5;

/// Where a request has a fixed cost, the texts of one request should take this
/// many times as long, as far as [`MAX_OF_TIMEOUT`] allows.
const TIMES_FIXED_COST: f64 = 10.0;
const MAX_OF_TIMEOUT: f64 = 0.25;

/// Texts of the first request, when nothing is known.
const FIRST_TEXTS: usize = 8;

/// A request holds at most this many times as much as one that was answered.
const GROWTH: f64 = 8.0;

/// The factor by which the reach shrinks with each small request: what ELF learned from
/// large requests becomes stale.
const KEPT_REACH: f64 = 0.95;

/// After this time without an answer, requests begin small again.
const STALE: Duration = Duration::from_secs(300);

/// A text weighs its tokens plus this. Otherwise short texts would seem far too cheap
/// on a server that pads texts or has a cost for each of them.
const TEXT_WEIGHT: usize = 32;

/// More requests in flight must raise the throughput by this factor.
const WORTHWHILE: f64 = 1.1;

/// Fewest answers to judge a number of requests in flight by.
const FEWEST_ANSWERS: usize = 3;

/// Answers until the next trial, after a number of requests in flight that was not
/// better. They double each time.
const TRIAL_AFTER: std::ops::RangeInclusive<usize> = 32..=256;

/// What is known of the provider's pace, and the limits that follow from it.
pub struct Pace {
    limits: Limits,
    /// What the provider refused.
    ceiling: Ceiling,
    max_in_flight: usize,
    timeout_secs: f64,
    speed: Speed,
    /// Weight that a request may hold, judged by the requests answered so far; `None` at
    /// first.
    reach: Option<f64>,
    answered: Option<Instant>,
    allowed: usize,
    trial: Option<Trial>,
    next: Direction,
    /// Whether the next trial upwards doubles the number; false once that was too much.
    doubling: bool,
    until_trial: usize,
    /// Answers from the next failed trial to the one after it.
    trial_after: usize,
    halved: Option<Instant>,
    in_flight: usize,
    /// The number of requests in flight, summed over time.
    in_flight_secs: f64,
    changed: Option<Instant>,
}

/// A trial of another number of requests in flight, until it is judged.
struct Trial {
    before: usize,
    /// Only requests sent since then count.
    started: Instant,
    /// Whether one has ended: the first ones reach a server that is not yet fully loaded.
    steady: bool,
    answers: usize,
    took: f64,
    /// Seconds that the same requests would have taken before the trial.
    expected: f64,
    in_flight_secs: f64,
}

#[derive(Clone, Copy, PartialEq)]
enum Direction {
    Up,
    Down,
}

/// A request in flight.
pub struct Sent {
    /// When it was sent.
    pub at: Instant,
    weight: f64,
    in_flight_secs: f64,
}

impl Pace {
    /// Nothing is known yet. `limits` and `max_in_flight` are never exceeded.
    pub fn new(limits: Limits, max_in_flight: usize, timeout: Duration) -> Self {
        Self {
            limits,
            ceiling: Ceiling::default(),
            max_in_flight: max_in_flight.max(1),
            timeout_secs: timeout.as_secs_f64(),
            speed: Speed::default(),
            reach: None,
            answered: None,
            allowed: 1,
            trial: None,
            next: Direction::Up,
            doubling: true,
            until_trial: FEWEST_ANSWERS,
            trial_after: *TRIAL_AFTER.start(),
            halved: None,
            in_flight: 0,
            in_flight_secs: 0.0,
            changed: None,
        }
    }

    /// Requests that may be in flight.
    pub fn allowed(&self) -> usize {
        self.allowed
    }

    #[cfg(test)]
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// How many texts of these `tokens` the next request may hold. A text that exceeds
    /// the limits by itself is sent alone: the provider decides whether it is too long.
    pub fn fits(&self, tokens: &mut dyn Iterator<Item = usize>, now: Instant) -> usize {
        let stale = self.answered.is_some_and(|at| now > at + STALE);
        let (reach, inputs) = match self.reach {
            Some(reach) if !stale => (reach, self.limits.max_inputs),
            _ => (f64::INFINITY, self.limits.max_inputs.min(FIRST_TEXTS)),
        };
        let ceiling = self.ceiling.at(now);
        let most = reach.min(self.quick_weight()).min(ceiling.weight as f64);
        let max_tokens = self.limits.max_tokens.min(ceiling.tokens);
        let (mut sum, mut weight) = (0, 0);
        let fitting = tokens.take(inputs.min(ceiling.texts)).take_while(|tokens| {
            sum += tokens;
            weight += tokens + TEXT_WEIGHT;
            sum <= max_tokens && weight as f64 <= most
        });
        fitting.count().max(1)
    }

    /// Makes requests smaller for a while. Returns whether they were larger before.
    pub fn learn_ceiling(&mut self, learned: Learned, now: Instant) -> bool {
        self.ceiling.learn(learned, now)
    }

    /// Whether the pace explains how long the request has taken: it is slow, or unknown.
    pub fn explains(&self, sent: &Sent, now: Instant) -> bool {
        let expected = self.speed.expected(sent.weight);
        let took = secs_between(sent.at, now);
        expected.is_none_or(|secs| secs > took * MAX_OF_TIMEOUT)
    }

    /// Records that a request is sent.
    pub fn sent(&mut self, tokens: impl IntoIterator<Item = usize>, now: Instant) -> Sent {
        self.count(1, now);
        self.sent_apart(tokens, now)
    }

    /// A request that the pace has no part in.
    pub fn sent_apart(&self, tokens: impl IntoIterator<Item = usize>, now: Instant) -> Sent {
        Sent {
            at: now,
            weight: weight(tokens) as f64,
            in_flight_secs: self.in_flight_secs,
        }
    }

    /// Records that a request ended in a way that says nothing about the pace.
    pub fn ended(&mut self, now: Instant) {
        self.count(-1, now);
    }

    /// Records that a request returned vectors.
    pub fn answered(&mut self, sent: &Sent, now: Instant) {
        self.count(-1, now);
        let secs = secs_between(sent.at, now).max(1e-6);
        let mean_in_flight = (self.in_flight_secs - sent.in_flight_secs) / secs;
        let most = sent.weight * GROWTH;
        self.reach = Some(
            self.reach
                .map_or(most, |reach| most.max(reach * KEPT_REACH)),
        );
        self.answered = Some(now);
        // With fewer in flight than allowed, the answer says nothing about that number.
        let share = mean_in_flight / self.allowed as f64;
        let full = share > 0.75;
        let Some(trial) = &mut self.trial else {
            // Otherwise it shared the server with requests above the present limit.
            if share < 1.5 {
                self.learn(sent.weight, secs);
            }
            if full {
                self.until_trial = self.until_trial.saturating_sub(1);
                if self.until_trial == 0 {
                    self.begin_trial(now);
                }
            }
            return;
        };
        let more = self.allowed as f64 / trial.before as f64;
        if self.speed.change(sent.weight, secs, more).is_some() {
            // The pace itself changed: the trial proves nothing.
            self.allowed = trial.before;
            self.trial = None;
            self.learn(sent.weight, secs);
        } else if !full {
            self.learn(sent.weight, secs);
        } else if sent.at >= trial.started && !trial.steady {
            trial.steady = true;
            trial.started = now;
        } else if sent.at >= trial.started {
            trial.answers += 1;
            trial.took += secs;
            trial.expected += self.speed.expected(sent.weight).unwrap_or(secs);
            trial.in_flight_secs += mean_in_flight * secs;
            if trial.answers >= FEWEST_ANSWERS.max(self.allowed + 2) {
                self.judge(now);
            }
        }
    }

    /// Records that a request timed out. The provider may still be computing it.
    pub fn timed_out(&mut self, sent: &Sent, now: Instant) {
        self.count(-1, now);
        self.reach = Some(self.reach.unwrap_or(f64::INFINITY).min(sent.weight / 2.0));
        self.halve(sent, now);
        // The timeout is only the least that it would have taken.
        self.learn(
            sent.weight,
            secs_between(sent.at, now).max(self.timeout_secs),
        );
    }

    /// Records that the provider refused a request because there are too many.
    pub fn refused(&mut self, sent: &Sent, now: Instant) {
        self.count(-1, now);
        self.halve(sent, now);
    }

    /// Halves the allowed requests in flight: once for all requests that were in flight
    /// together, not once for each.
    fn halve(&mut self, sent: &Sent, now: Instant) {
        if self.halved.is_some_and(|halved| sent.at <= halved) {
            return;
        }
        let before = self.trial.take().map_or(self.allowed, |trial| trial.before);
        self.allowed = (before.min(self.allowed) / 2).max(1);
        self.halved = Some(now);
        self.next = Direction::Up;
        self.until_trial = *TRIAL_AFTER.start();
    }

    fn learn(&mut self, weight: f64, secs: f64) {
        let Some(change) = self.speed.change(weight, secs, 1.0) else {
            return self.speed.add(weight, secs);
        };
        self.speed.scale(change);
        self.speed.add(weight, secs);
        self.until_trial = self.until_trial.min(FEWEST_ANSWERS);
        self.trial_after = *TRIAL_AFTER.start();
        self.doubling = true;
        self.next = if change > 1.0 {
            Direction::Down
        } else {
            Direction::Up
        };
    }

    fn begin_trial(&mut self, now: Instant) {
        if self.allowed == 1 {
            self.next = Direction::Up;
        } else if self.allowed == self.max_in_flight {
            self.next = Direction::Down;
        }
        let allowed = match self.next {
            Direction::Down => self.allowed / 2,
            Direction::Up if self.doubling => self.allowed * 2,
            Direction::Up => self.allowed + (self.allowed / 4).max(1),
        };
        let allowed = allowed.clamp(1, self.max_in_flight);
        if allowed == self.allowed {
            self.until_trial = *TRIAL_AFTER.end();
            return;
        }
        self.trial = Some(Trial {
            before: self.allowed,
            started: now,
            steady: false,
            answers: 0,
            took: 0.0,
            expected: 0.0,
            in_flight_secs: 0.0,
        });
        self.allowed = allowed;
    }

    fn judge(&mut self, now: Instant) {
        let Some(trial) = self.trial.take() else {
            return;
        };
        let slower = trial.took / trial.expected;
        let in_flight = trial.in_flight_secs / trial.took;
        let throughput = in_flight / trial.before as f64 / slower;
        if throughput >= required_throughput(trial.before, self.allowed) {
            self.speed.scale(slower);
            self.begin_trial(now);
        } else {
            self.doubling &= self.allowed < trial.before;
            self.next = match self.next {
                Direction::Up => Direction::Down,
                Direction::Down => Direction::Up,
            };
            self.allowed = trial.before;
            self.until_trial = self.trial_after;
            self.trial_after = (self.trial_after * 2).min(*TRIAL_AFTER.end());
        }
    }

    /// Weight of a request that answers in time.
    fn quick_weight(&self) -> f64 {
        let target = (self.timeout_secs * TARGET_OF_TIMEOUT).min(MAX_TARGET_SECS);
        let longest = self.longest_secs();
        let allowed = |fixed: f64| (fixed * TIMES_FIXED_COST).clamp(target, longest);
        self.speed.weight_within(target, longest, allowed)
    }

    fn longest_secs(&self) -> f64 {
        self.timeout_secs * MAX_OF_TIMEOUT
    }

    fn count(&mut self, more: isize, now: Instant) {
        if let Some(changed) = self.changed.replace(now) {
            self.in_flight_secs += secs_between(changed, now) * self.in_flight as f64;
        }
        self.in_flight = self.in_flight.saturating_add_signed(more);
    }
}

/// The factor that the throughput must reach to change from `before` requests in
/// flight to `after`. Fewer are preferred where they give nearly as much.
fn required_throughput(before: usize, after: usize) -> f64 {
    let ratio = after as f64 / before as f64;
    if ratio > 1.0 {
        WORTHWHILE.min(1.0 + (ratio - 1.0) / 2.0)
    } else {
        1.0 / WORTHWHILE
    }
}

/// What texts of these `tokens` weigh together.
pub fn weight(tokens: impl IntoIterator<Item = usize>) -> usize {
    let weights = tokens.into_iter().map(|tokens| tokens + TEXT_WEIGHT);
    weights.sum()
}

fn secs_between(earlier: Instant, later: Instant) -> f64 {
    later.saturating_duration_since(earlier).as_secs_f64()
}

#[cfg(test)]
mod tests;
