//! SIGTERM and SIGINT.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::output::{is_watched, print_error};
use crate::config::Config;

/// What a shell adds to the number of a signal that ended a program.
const ENDED_BY_SIGNAL: i32 = 128;

/// A token that SIGTERM or SIGINT cancels. The message of the signal has `what_now`, which says
/// what happens to the work in flight. A second signal ends the process at once, as a crash would:
/// nothing is lost, leases of notes expire.
pub fn stop_on_signals(what_now: &str) -> anyhow::Result<CancellationToken> {
    let stop = CancellationToken::new();
    let mut signals = Signals {
        terminate: signal(SignalKind::terminate())?,
        interrupt: signal(SignalKind::interrupt())?,
    };
    let (stopping, what_now) = (stop.clone(), what_now.to_owned());
    tokio::spawn(async move {
        signals.next().await;
        report(&what_now);
        stopping.cancel();
        let kind = signals.next().await;
        std::process::exit(ENDED_BY_SIGNAL + kind.as_raw_value());
    });
    Ok(stop)
}

/// What a worker waits for when it is told to stop.
pub fn in_flight(config: &Config) -> String {
    format!(
        "no new claims; work in flight has up to {} s to end (worker.grace_secs)",
        config.worker.grace_secs
    )
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    async fn next(&mut self) -> SignalKind {
        tokio::select! {
            _ = self.terminate.recv() => SignalKind::terminate(),
            _ = self.interrupt.recv() => SignalKind::interrupt(),
        }
    }
}

/// Who pressed Ctrl-C reads a sentence, at every `log_level`; a service has a log line.
fn report(what_now: &str) {
    if is_watched() {
        print_error(&format!(
            "\nelf: stopping: {what_now}. A second Ctrl-C ends it at once."
        ));
    } else {
        tracing::info!(
            effect = what_now,
            second = "ends the process at once",
            "stop signal received"
        );
    }
}
