//! Seconds that a request takes by its weight: a fixed cost, and a cost that
//! grows with the weight. Fitted by least squares to the newest answers.

/// The factor by which an answer's share shrinks with each newer one.
const KEPT: f64 = 0.9;

/// A change by this factor counts as a change of pace, not as noise.
const CHANGE: f64 = 2.0;

/// Weights must differ by this much (variance over squared mean) to tell the
/// fixed cost from the growing one.
const SPREAD: f64 = 0.1;

/// How far one answer moves the fixed cost. Below 1, because small requests that are
/// slow after a change of pace look like a fixed cost.
const TRUST: f64 = 0.5;

/// The fit. Sums over answers, newer ones counting more.
#[derive(Default)]
pub struct Speed {
    answers: f64,
    weight: f64,
    secs: f64,
    weight_squared: f64,
    weight_secs: f64,
    /// Seconds of a request without weight, as last estimated.
    fixed: f64,
    /// Weight and seconds of the newest answer.
    last: (f64, f64),
}

impl Speed {
    /// An answer took `secs`.
    pub fn add(&mut self, weight: f64, secs: f64) {
        self.last = (weight, secs);
        let sums = [
            (&mut self.answers, 1.0),
            (&mut self.weight, weight),
            (&mut self.secs, secs),
            (&mut self.weight_squared, weight * weight),
            (&mut self.weight_secs, weight * secs),
        ];
        for (sum, value) in sums {
            *sum = *sum * KEPT + value;
        }
        let spread = self.answers * self.weight_squared - self.weight * self.weight;
        if spread > SPREAD * self.weight * self.weight {
            let slope = (self.answers * self.weight_secs - self.weight * self.secs) / spread;
            let fixed = (self.secs - slope * self.weight) / self.answers;
            self.fixed += (fixed - self.fixed) * TRUST;
        }
        self.fixed = self.fixed.clamp(0.0, self.secs / self.answers);
    }

    /// The provider is slower by `factor`.
    pub fn scale(&mut self, factor: f64) {
        self.secs *= factor;
        self.weight_secs *= factor;
        self.fixed *= factor;
    }

    /// Seconds that a request of `weight` should take; `None` when nothing is known.
    pub fn expected(&self, weight: f64) -> Option<f64> {
        (self.answers > 0.0).then(|| self.fixed + self.secs_per_weight() * weight)
    }

    /// How much slower or faster the provider is than estimated, if this answer proves a
    /// change. It proves *slower* if the request took longer than a heavier one should. It
    /// proves *faster* if an average request must now take less time than estimated. `more` is
    /// the change that the number of requests in flight already explains.
    pub fn change(&self, weight: f64, secs: f64, more: f64) -> Option<f64> {
        let mean = self.weight / self.answers;
        let slower = secs / self.expected(weight.max(mean))?;
        // A light request scaled up bounds a heavy one: its fixed cost is scaled, too.
        let faster = secs * (mean / weight).max(1.0) / self.expected(mean)?;
        if slower > CHANGE * more.max(1.0) {
            return Some(slower);
        }
        (faster * CHANGE < more.min(1.0)).then_some(faster)
    }

    /// The weight of a request that takes `allowed(fixed cost)` seconds. Beyond
    /// `target` seconds it grows in steps from the newest answer, and only up to
    /// `longest` seconds, even if the whole cost grew with the weight.
    pub fn weight_within(&self, target: f64, longest: f64, allowed: impl Fn(f64) -> f64) -> f64 {
        if self.answers == 0.0 {
            return f64::INFINITY;
        }
        let growing = (allowed(self.fixed) - self.fixed) / self.secs_per_weight().max(1e-9);
        let mean = self.secs / self.answers;
        let most = (CHANGE * mean).min(longest).max(target);
        let step = match self.last {
            (weight, secs) if secs > target => weight * (longest / secs).min(CHANGE),
            _ => f64::INFINITY,
        };
        growing.min(most / self.secs * self.weight).min(step)
    }

    fn secs_per_weight(&self) -> f64 {
        (self.secs - self.fixed * self.answers) / self.weight
    }
}
