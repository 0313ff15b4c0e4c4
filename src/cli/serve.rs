//! `elf serve`, and the HTTP API of `elf worker`.

use std::time::Duration;

use anyhow::Context;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::signals::stop_on_signals;
use super::{systemd, wiring};
use crate::config::Config;
use crate::http::api::{self, Api};
use crate::registry;
use crate::worker::WorkerContext;

/// Serves the HTTP API until stopped by SIGTERM or SIGINT. Requests in flight end first.
pub async fn run(config: &Config) -> anyhow::Result<()> {
    let bind = config
        .service
        .http_bind
        .as_deref()
        .context("set service.http_bind, for example \"127.0.0.1:9465\"")?;
    let stop = stop_on_signals("no new requests; requests in flight end")?;
    let context = wiring::worker_context(config).await?;
    registry::check_version_is_active(&context.stores.store, &context.version).await?;
    let serving = start(config, bind, &context, stop.clone()).await?;
    systemd::ready("serving");
    let told = async {
        stop.cancelled().await;
        systemd::stopping();
    };
    tokio::join!(drain(serving, config, &stop), told);
    tracing::info!("HTTP API stopped");
    Ok(())
}

/// Waits for `stop`, and then until the requests in flight have ended, at most for the grace
/// period.
pub async fn drain(serving: AbortOnDropHandle<()>, config: &Config, stop: &CancellationToken) {
    stop.cancelled().await;
    let grace = Duration::from_secs(config.worker.grace_secs.into());
    if tokio::time::timeout(grace, serving).await.is_err() {
        tracing::warn!(
            ?grace,
            "requests in flight did not end within the grace period"
        );
    }
}

/// Binds the port and serves the API in the background until `stop`.
pub async fn start(
    config: &Config,
    bind: &str,
    context: &WorkerContext,
    stop: CancellationToken,
) -> anyhow::Result<AbortOnDropHandle<()>> {
    let mut context = context.clone();
    // Connections of its own, so that searches do not take those of the worker.
    context.stores.store = wiring::store(config).await?;
    let api = Api {
        store: context.stores.store.clone(),
        searcher: wiring::searcher(&context, config)?,
        version: context.version.name.clone(),
        max_note_bytes: config.worker.max_note_bytes,
        trace_days: config.search.trace_days,
    };
    let (address, serving) = api::serve(bind, api, stop)
        .await
        .with_context(|| format!("failed to bind service.http_bind {bind}"))?;
    tracing::info!(%address, "HTTP API serves /v2 and /mcp");
    Ok(serving)
}
