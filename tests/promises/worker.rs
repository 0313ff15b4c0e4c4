//! The worker against a real Postgres and a real vector engine. Names are promises.

mod attempts;
mod claims;
mod convergence;
mod embedding;
mod leases;
mod outbox;

use std::sync::Arc;

use elf::worker::Worker;
use tokio_util::sync::CancellationToken;

/// Runs `worker` in the background until the token is cancelled.
fn spawn(worker: Worker) -> (Arc<Worker>, CancellationToken, tokio::task::JoinHandle<()>) {
    let (worker, stop) = (Arc::new(worker), CancellationToken::new());
    let running = tokio::spawn({
        let (worker, stop) = (worker.clone(), stop.clone());
        async move { worker.run(stop).await }
    });
    (worker, stop, running)
}
