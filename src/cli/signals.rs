//! SIGTERM and SIGINT.

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// A token that SIGTERM or SIGINT cancels. The log line of the signal has `what_now`, which
/// says what happens to the work in flight.
pub fn stop_on_signals(what_now: &'static str) -> anyhow::Result<CancellationToken> {
    let stop = CancellationToken::new();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let stopping = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!(effect = what_now, "stop signal received");
        stopping.cancel();
    });
    Ok(stop)
}
