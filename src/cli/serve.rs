//! `elf serve`, and the HTTP API of `elf worker`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use futures::future::BoxFuture;
use metrics::gauge;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::signals::stop_on_signals;
use super::{systemd, wiring};
use crate::canary::Canary;
use crate::config::Config;
use crate::http::api::{self, Api};
use crate::http::bounds::Bounds;
use crate::http::{self, Admin};
use crate::search::Searcher;
use crate::serving;
use crate::telemetry::{self, Metrics};
use crate::worker::Pipeline;

/// How often the samples of histograms are freed, and `elf_ready` is set.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Arguments of `elf serve`.
#[derive(clap::Args)]
pub struct Args {
    /// Serve Prometheus metrics at /metrics of this address, such as 127.0.0.1:9466
    #[arg(long, value_name = "HOST:PORT")]
    metrics: Option<String>,
}

/// Serves the HTTP API until stopped by SIGTERM or SIGINT. Requests in flight end first.
pub async fn run(config: &Config, args: Args) -> anyhow::Result<()> {
    let bind = config
        .service
        .http_bind
        .as_deref()
        .context("set service.http_bind, for example \"127.0.0.1:9465\"")?;
    for warning in config.warnings() {
        tracing::warn!("{warning}");
    }
    let stop = stop_on_signals(&format!(
        "no new requests; requests in flight have up to {} s to end (worker.grace_secs)",
        config.worker.grace_secs
    ))?;
    let bounds = Bounds::of_this_process(config);
    // Before the first search is counted.
    let metrics = match &args.metrics {
        Some(bind) => Some(serve_metrics(config, bind, bounds).await?),
        None => None,
    };
    // A model may take minutes to load.
    let connecting = Box::pin(wiring::search_pipeline(config));
    let Some(pipeline) = stop.run_until_cancelled(connecting).await else {
        return Ok(());
    };
    let pipeline = pipeline?;
    let serving = start(config, bind, pipeline.clone(), bounds, stop.clone()).await?;
    let _watching = metrics
        .map(|metrics| AbortOnDropHandle::new(tokio::spawn(watch(pipeline.clone(), metrics))));
    systemd::ready("serving");
    let told = async {
        stop.cancelled().await;
        systemd::stopping();
    };
    tokio::join!(drain(serving, config, &stop), told);
    tracing::info!("HTTP API stopped");
    Ok(())
}

async fn serve_metrics(config: &Config, bind: &str, bounds: Bounds) -> anyhow::Result<Metrics> {
    let metrics = telemetry::init_metrics()
        .context("failed to start metrics: this process has a recorder already")?;
    let admin = Admin::new(&config.service, metrics.clone(), Arc::default());
    let address = http::serve_metrics(bind, admin, bounds)
        .await
        .with_context(|| format!("failed to bind --metrics {bind}"))?;
    tracing::info!(%address, "metrics are at /metrics");
    Ok(metrics)
}

/// Keeps the metrics of a process without a worker, until dropped.
async fn watch(pipeline: Pipeline, metrics: Metrics) {
    let mut ticks = tokio::time::interval(LOOK_EVERY);
    loop {
        ticks.tick().await;
        metrics.free_samples();
        let is_active =
            serving::check_version_is_active(&pipeline.serving.store, &pipeline.version).await;
        gauge!("elf_ready").set(f64::from(u8::from(is_active.is_ok())));
    }
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

/// The canary of `[quality.canary]`.
fn canary(config: &Config, pipeline: &Pipeline) -> Option<Arc<Canary>> {
    let limits = config.quality.canary.clone();
    let path = PathBuf::from(limits.config.as_ref()?);
    let served = pipeline.serving.clone();
    let store = served.store.clone();
    let open = move |version: String| -> BoxFuture<'static, anyhow::Result<Searcher>> {
        let (path, served) = (path.clone(), served.clone());
        Box::pin(async move { wiring::searcher_of_built(&path, served, &version).await })
    };
    Some(Arc::new(Canary::new(store, limits, Box::new(open))))
}

/// Binds the port and serves the API in the background until `stop`.
pub async fn start(
    config: &Config,
    bind: &str,
    pipeline: Pipeline,
    bounds: Bounds,
    stop: CancellationToken,
) -> anyhow::Result<AbortOnDropHandle<()>> {
    let canary = canary(config, &pipeline);
    if let Some(canary) = &canary {
        let watching = canary.clone().watch();
        let until = stop.clone();
        tokio::spawn(async move { until.run_until_cancelled(watching).await });
    }
    let api = Api {
        canary,
        store: pipeline.serving.store.clone(),
        searcher: wiring::searcher(&pipeline, config).await?,
        version: pipeline.version.name.clone(),
        max_note_bytes: config.worker.max_note_bytes,
        bounds,
        trace_days: config.search.trace_days,
    };
    let (address, serving) = api::serve(bind, api, stop)
        .await
        .with_context(|| format!("failed to bind service.http_bind {bind}"))?;
    tracing::info!(%address, "HTTP API serves /v2 and /mcp");
    Ok(serving)
}
