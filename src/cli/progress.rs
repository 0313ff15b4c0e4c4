//! A progress bar on a terminal, nothing elsewhere.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use tokio::task::AbortHandle;

use super::output::is_watched;

/// A bar that follows a count until it is finished.
pub struct Progress {
    bar: ProgressBar,
    following: AbortHandle,
}

impl Progress {
    /// Shows `what` on its way to `total`; `count` says how far it is.
    pub fn start(what: &'static str, total: i64, count: impl Fn() -> u64 + Send + 'static) -> Self {
        let bar = if is_watched() {
            ProgressBar::new(total.max(0) as u64)
        } else {
            ProgressBar::hidden()
        };
        let style = ProgressStyle::with_template("{msg} {bar:40} {pos}/{len} {per_sec} {eta}")
            .expect("the template is well formed");
        bar.set_style(style);
        bar.set_message(what);
        let following = tokio::spawn({
            let bar = bar.clone();
            async move {
                loop {
                    bar.set_position(count());
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        });
        Self {
            bar,
            following: following.abort_handle(),
        }
    }

    /// Takes the bar away.
    pub fn finish(self) {
        self.following.abort();
        self.bar.finish_and_clear();
    }
}
