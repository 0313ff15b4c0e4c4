//! Notifications to systemd, if it started this process with `Type=notify`; else nothing is
//! sent. See sd_notify(3).

use std::time::Duration;

use sd_notify::NotifyState;

use crate::observe::Health;
use crate::observe::Observer;

const STATUS_EVERY: Duration = Duration::from_secs(10);

/// Reports the service as started, with `what` as its status line.
pub fn ready(what: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(what)]);
}

pub fn stopping() {
    tell(&[NotifyState::Stopping, NotifyState::Status("stopping")]);
}

pub fn status(what: &str) {
    tell(&[NotifyState::Status(what)]);
}

/// Feeds the watchdog while the service waits to start. Runs until dropped.
pub async fn feed_watchdog() -> std::convert::Infallible {
    let Some(every) = watchdog() else {
        return std::future::pending().await;
    };
    let mut ticks = tokio::time::interval(every);
    loop {
        ticks.tick().await;
        tell(&[NotifyState::Watchdog]);
    }
}

/// Keeps the status line up to date, and feeds the watchdog as long as the observer runs: a
/// hung process is restarted by systemd. Runs until dropped.
pub async fn report_status(observer: &Observer, health: &Health) {
    let every = watchdog().unwrap_or(STATUS_EVERY).min(STATUS_EVERY);
    let mut ticks = tokio::time::interval(every);
    loop {
        ticks.tick().await;
        status(&line(observer, health));
        if observer.is_awake() {
            tell(&[NotifyState::Watchdog]);
        }
    }
}

/// Half of the watchdog's timeout; `None` without a watchdog.
fn watchdog() -> Option<Duration> {
    let timeout = sd_notify::watchdog_enabled()?;
    Some((timeout / 2).max(Duration::from_millis(1)))
}

fn line(observer: &Observer, health: &Health) -> String {
    if let Some(check) = health.problem() {
        let reason = check.reason.unwrap_or_default();
        return format!(
            "not ready since {}: {}: {reason}",
            check.since.format("%F %T UTC"),
            check.name.as_str()
        );
    }
    let notes = observer.worker.totals().notes;
    match observer.seen().outbox {
        Some(outbox) => format!(
            "ready: {} pending, {} failed, {} dead; {notes} notes indexed",
            outbox.pending + outbox.leased,
            outbox.failed,
            outbox.dead
        ),
        None => "ready".to_owned(),
    }
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "failed to notify systemd");
    }
}
