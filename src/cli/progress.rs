//! The progress of a command: a bar on a terminal, else a log line every ten seconds.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use tokio_util::task::AbortOnDropHandle;

use super::output::is_watched;

const DRAW_EVERY: Duration = Duration::from_millis(100);
const LOG_EVERY: Duration = Duration::from_secs(10);

/// How much of the work is done.
pub struct Count {
    pub done: u64,
    pub total: u64,
    /// The part of the work that is done, 0 to 1. It is not `done / total` where items differ
    /// in size.
    pub share: f64,
    /// What else is done, behind the numbers of a bar.
    pub beside: String,
}

impl Count {
    /// The count of items that take equally long.
    pub fn of_equals((done, total): (u64, u64)) -> Self {
        Self {
            done,
            total,
            share: done as f64 / total.max(1) as f64,
            beside: String::new(),
        }
    }
}

/// Reports a count until [`Self::finish`].
pub struct Progress {
    bar: Option<ProgressBar>,
    _following: AbortOnDropHandle<()>,
}

impl Progress {
    /// Reports the progress of `what`: `counts` returns the items done and the items in all.
    pub fn start(what: &'static str, counts: impl Fn() -> (u64, u64) + Send + 'static) -> Self {
        Self::start_weighed(what, move || Count::of_equals(counts()))
    }

    /// Reports the progress of `what`, whose items differ in size.
    pub fn start_weighed(what: &'static str, count: impl Fn() -> Count + Send + 'static) -> Self {
        let bar = is_watched().then(bar);
        let following = match bar.clone() {
            Some(bar) => tokio::spawn(draw(what, bar, count)),
            None => tokio::spawn(log(what, count)),
        };
        Self {
            bar,
            _following: AbortOnDropHandle::new(following),
        }
    }

    /// Stops reporting and removes the bar.
    pub fn finish(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}

const STEPS: u64 = 10_000;

fn bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {bar:40} {percent} % {eta}")
        .expect("the template is well formed");
    ProgressBar::new(STEPS).with_style(style)
}

async fn draw(what: &'static str, bar: ProgressBar, count: impl Fn() -> Count) {
    loop {
        let Count {
            done,
            total,
            share,
            beside,
        } = count();
        // The total is 0 until it has been counted.
        if total > 0 {
            bar.set_message(format!("{what} {done} of {total}{beside}"));
            bar.set_position((share.min(1.0) * STEPS as f64) as u64);
        }
        tokio::time::sleep(DRAW_EVERY).await;
    }
}

async fn log(what: &'static str, count: impl Fn() -> Count) {
    let mut began = Instant::now();
    let mut first = count();
    loop {
        tokio::time::sleep(LOG_EVERY).await;
        let Count {
            done, total, share, ..
        } = count();
        // What an earlier run has done is known with the total.
        if first.total == 0 {
            (began, first) = (Instant::now(), count());
        }
        let secs = began.elapsed().as_secs_f64();
        match secs_left(secs, share - first.share, 1.0 - share) {
            None => tracing::info!(done, total, "{what}"),
            Some(left) => {
                let per_sec = ((done - first.done) as f64 / secs).round();
                tracing::info!(done, total, per_sec, secs_left = left.round(), "{what}");
            }
        }
    }
}

/// A smaller share says nothing about the rest: the first work waits for connections and plans.
const MIN_SHARE: f64 = 0.01;

/// The seconds that the share `left` will take, when the share `done` took `secs`. `None` while
/// nearly nothing is done.
fn secs_left(secs: f64, done: f64, left: f64) -> Option<f64> {
    (done >= MIN_SHARE).then(|| secs * left.max(0.0) / done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remaining_time_follows_from_the_share_of_the_work() {
        assert_eq!(secs_left(10.0, 0.0, 1.0), None);
        assert_eq!(secs_left(10.0, 0.001, 0.999), None);
        assert_eq!(secs_left(10.0, 0.25, 0.75), Some(30.0));
        assert_eq!(secs_left(10.0, 1.1, -0.1), Some(0.0));
    }
}
