//! How far something is: a bar on a terminal, a log line now and then elsewhere.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use tokio::task::AbortHandle;

use super::output::is_watched;

const DRAW_EVERY: Duration = Duration::from_millis(100);
const LOG_EVERY: Duration = Duration::from_secs(10);

/// Follows a count until it is finished.
pub struct Progress {
    bar: Option<ProgressBar>,
    following: AbortHandle,
}

impl Progress {
    /// Shows how far `what` is: `counts` says how many are done, and of how many.
    pub fn start(what: &'static str, counts: impl Fn() -> (u64, u64) + Send + 'static) -> Self {
        let bar = is_watched().then(|| bar(what));
        let following = match bar.clone() {
            Some(bar) => tokio::spawn(draw(bar, counts)),
            None => tokio::spawn(log(what, counts)),
        };
        Self {
            bar,
            following: following.abort_handle(),
        }
    }

    /// Takes the bar away.
    pub fn finish(self) {
        self.following.abort();
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}

fn bar(what: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {bar:40} {pos}/{len} {per_sec} {eta}")
        .expect("the template is well formed");
    ProgressBar::new(0).with_style(style).with_message(what)
}

async fn draw(bar: ProgressBar, counts: impl Fn() -> (u64, u64)) {
    loop {
        let (done, total) = counts();
        // Nothing to draw before it is known how much there is.
        if total > 0 {
            bar.set_length(total);
            bar.set_position(done);
        }
        tokio::time::sleep(DRAW_EVERY).await;
    }
}

async fn log(what: &'static str, counts: impl Fn() -> (u64, u64)) {
    let began = Instant::now();
    let (first, _) = counts();
    loop {
        tokio::time::sleep(LOG_EVERY).await;
        let (done, total) = counts();
        if done == first {
            tracing::info!("{what}: {done} of {total}");
            continue;
        }
        let per_sec = (done - first) as f64 / began.elapsed().as_secs_f64();
        let secs_left = total.saturating_sub(done) as f64 / per_sec;
        tracing::info!("{what}: {done} of {total}, {per_sec:.0} a second, {secs_left:.0} s to go");
    }
}
