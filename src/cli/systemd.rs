//! What systemd is told, where it has started this process with `Type=notify`; elsewhere
//! nothing happens. See sd_notify(3).

use std::time::Duration;

use sd_notify::NotifyState;

use crate::observe::Health;
use crate::observe::Observer;

/// How often the status line is made anew.
const STATUS_EVERY: Duration = Duration::from_secs(10);

/// The service runs: `what` it does is its status.
pub fn ready(what: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(what)]);
}

/// The service is told to stop.
pub fn stopping() {
    tell(&[NotifyState::Stopping, NotifyState::Status("stopping")]);
}

/// What the service does, in a line.
pub fn status(what: &str) {
    tell(&[NotifyState::Status(what)]);
}

/// Keeps the watchdog quiet while the service waits to begin. Runs until dropped.
pub async fn keep_waiting() -> std::convert::Infallible {
    let Some(every) = watchdog() else {
        return std::future::pending().await;
    };
    let mut ticks = tokio::time::interval(every);
    loop {
        ticks.tick().await;
        tell(&[NotifyState::Watchdog]);
    }
}

/// Keeps the status line up to date, and the watchdog quiet as long as the process is
/// awake. Runs until dropped.
pub async fn keep_told(observer: &Observer, health: &Health) {
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

/// How often the watchdog is told: twice as often as it must be, where there is one.
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
    let notes = observer.worker().totals().notes;
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
        tracing::debug!(%error, "systemd does not listen");
    }
}
