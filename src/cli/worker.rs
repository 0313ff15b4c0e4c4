//! `elf worker`

use std::sync::Arc;

use anyhow::Context;

use super::output::Output;
use super::parts;
use super::progress::Progress;
use super::signals::stop_on_signals;
use crate::config::Config;
use crate::embed::EmbedError;
use crate::http;
use crate::telemetry;
use crate::worker::{self, Report, Worker};

/// Arguments of `elf worker`.
#[derive(clap::Args)]
pub struct Args {
    /// Index what is due, then exit
    #[arg(long)]
    once: bool,
}

/// Works until stopped by SIGTERM or SIGINT, or with `--once` until nothing is due.
pub async fn run(config: &Config, args: Args, out: Output) -> anyhow::Result<()> {
    let metrics = telemetry::init_metrics();
    let tools = parts::tools(config).await?;
    worker::prepare(&tools.store, &tools.version).await?;
    worker::check(&tools).await?;
    // A dimension that is known already was not asked for, so nobody has knocked yet.
    // A provider that is away may come back; one that refuses us will not by itself.
    if let Err(error @ EmbedError::Config { .. }) = tools.provider.check().await {
        return Err(error).context("failed to start providers.embedding");
    }
    let stop = stop_on_signals("no new claims, work in flight ends")?;
    let (store, index) = (tools.store.clone(), tools.index.clone());
    let (provider, alias) = (tools.provider.clone(), tools.alias.clone());
    let version = tools.version.name.clone();
    let worker = Arc::new(Worker::new(tools, &config.worker, &config.outbox));

    if args.once {
        let counts = store.outbox_counts(Some(&version)).await?;
        let due = (counts.pending + counts.failed) as u64;
        let progress = Progress::start("indexing", {
            let worker = worker.clone();
            move || (worker.totals().notes, due)
        });
        let drained = worker.drain(stop).await;
        progress.finish();
        drained?;
        return out.report(&worker.totals(), lines);
    }

    if let Some(metrics) = metrics {
        let admin = http::Admin {
            metrics,
            store,
            index: index.clone(),
            alias,
            provider,
            worker: worker.clone(),
        };
        let bind = &config.service.admin_bind;
        let address = http::serve(bind, admin)
            .await
            .with_context(|| format!("failed to bind service.admin_bind {bind}"))?;
        tracing::info!(%address, "serving /metrics, /livez and /readyz");
    }
    tracing::info!(version, index = index.describe(), "working");
    worker.run(stop).await;
    tracing::info!("stopped");
    out.report(&worker.totals(), lines)
}

fn lines(report: &Report) -> String {
    format!(
        "{} notes, {} chunks ({} embedded, {} reused), {} points, {} dead letters, {:.1} s",
        report.notes,
        report.chunks,
        report.embedded,
        report.reused,
        report.points,
        report.dead,
        report.seconds
    )
}
