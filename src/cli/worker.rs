//! `elf worker`

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio_util::sync::CancellationToken;

use super::daemon::Daemon;
use super::output::{Output, with_causes};
use super::progress::{Count, Progress};
use super::signals::stop_on_signals;
use super::systemd;
use super::{exit, wiring};
use crate::backoff;
use crate::config::Config;
use crate::embed::EmbedError;
use crate::observe::Health;
use crate::registry;
use crate::worker::{Report, Worker, WorkerContext};

/// Pauses between two tries to start while a dependency is unavailable.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Arguments of `elf worker`.
#[derive(clap::Args)]
pub struct Args {
    /// Index what is due, then exit
    #[arg(long)]
    once: bool,
    /// Bring the schema up to date first
    #[arg(long)]
    migrate: bool,
}

/// Works until stopped by SIGTERM or SIGINT, or with `--once` until nothing is due.
pub async fn run(config: &Config, args: Args, out: Output) -> anyhow::Result<()> {
    let report = if args.once {
        Box::pin(drain(config, args.migrate)).await?
    } else {
        Box::pin(serve(config, args.migrate)).await?
    };
    out.report(&report, lines)
}

async fn drain(config: &Config, migrate: bool) -> anyhow::Result<Report> {
    let context = prepare_context(config, migrate).await?;
    let stop = stop_on_signals("no new claims; work in flight ends")?;
    let (store, version) = (context.stores.store.clone(), context.version.name.clone());
    // The total is notes and not outbox rows: a note may have several rows. The share is in
    // bytes, because the time that a note takes follows the length of its text.
    let (due, bytes) = store.due_notes(&version).await?;
    let worker = Arc::new(Worker::new(context, &config.worker, &config.outbox));
    let progress = Progress::start_weighed("indexing", {
        let worker = worker.clone();
        move || {
            let done = worker.totals();
            Count {
                done: done.notes,
                total: due,
                share: done.bytes as f64 / bytes.max(1) as f64,
            }
        }
    });
    let drained = worker.drain(stop).await;
    progress.finish();
    drained?;
    let counts = store.outbox_counts(Some(&version)).await?;
    if counts.leased > 0 {
        tracing::warn!(
            notes = counts.leased,
            lease_secs = config.worker.lease_secs,
            "notes are leased by another worker, or by one that was killed: not waiting for them"
        );
    }
    Ok(worker.totals())
}

async fn serve(config: &Config, migrate: bool) -> anyhow::Result<Report> {
    for warning in config.clear_text_warnings() {
        tracing::warn!("{warning}");
    }
    let stop = stop_on_signals("no new claims; work in flight ends")?;
    let daemon = Daemon::start(&config.service).await?;
    let begun = tokio::select! {
        begun = prepare_with_retries(config, migrate, &daemon.health, &stop) => begun?,
        never = systemd::feed_watchdog() => match never {},
    };
    let Some(context) = begun else {
        return Ok(Report::default());
    };
    let (version, index) = (
        context.version.name.clone(),
        context.stores.index.describe(),
    );
    let worker = Arc::new(Worker::new(context.clone(), &config.worker, &config.outbox));
    let watching = daemon.watch(context, worker.clone()).await;
    tracing::info!(version, index, "worker started");
    systemd::ready("working");
    let told = async {
        stop.cancelled().await;
        systemd::stopping();
    };
    tokio::join!(worker.run(stop.clone()), told);
    drop(watching);
    tracing::info!("worker stopped");
    Ok(worker.totals())
}

/// Connects to Postgres, the vector engine and the provider, checks that the embedding
/// version matches the database, and makes the collection ready.
pub async fn prepare_context(config: &Config, migrate: bool) -> anyhow::Result<WorkerContext> {
    if migrate {
        let store = wiring::store(config).await?;
        let migrations = store.migrate().await?;
        tracing::info!(migrations, "schema is up to date");
        for note in store.restrict_triggers().await? {
            tracing::warn!("{note}");
        }
    }
    let context = wiring::worker_context(config).await?;
    registry::prepare(&context.stores.store, &context.version).await?;
    context
        .stores
        .store
        .record_settings(&context.version)
        .await?;
    registry::ensure_ready(&context.stores, &context.version).await?;
    // With a pinned dimension the worker has sent no request to the provider yet. An
    // unavailable provider may recover; one that rejects the key or the model will not.
    if let Err(error @ EmbedError::Config { .. }) = context.provider.check().await {
        return Err(error).context("failed to start providers.embedding");
    }
    Ok(context)
}

/// Retries while a store or the provider is unavailable, and while the schema is too old:
/// a migration may be running in another process. Every other error is returned at once.
/// `None` when the worker is told to stop while it waits.
async fn prepare_with_retries(
    config: &Config,
    migrate: bool,
    health: &Health,
    stop: &CancellationToken,
) -> anyhow::Result<Option<WorkerContext>> {
    let mut waiting_for = None;
    for tries in 1.. {
        let error = tokio::select! {
            () = stop.cancelled() => return Ok(None),
            begun = prepare_context(config, migrate) => match begun {
                Ok(context) => return Ok(Some(context)),
                Err(error) => error,
            },
        };
        let Some(part) = exit::unavailable_part(&error) else {
            return Err(error);
        };
        let reason = with_causes(&error);
        // Log once per part, not once per try.
        let is_news = waiting_for.replace(part) != Some(part);
        if is_news {
            health.forget();
        }
        health.set(part, Some(reason.clone()));
        if is_news {
            tracing::warn!(reason, "waiting to start");
            systemd::ready(&format!("waiting: {reason}"));
        }
        let pause = backoff::delay(tries, FIRST_PAUSE, LONGEST_PAUSE, rand::random());
        tokio::select! {
            () = stop.cancelled() => return Ok(None),
            () = tokio::time::sleep(pause) => {}
        }
    }
    unreachable!("the counter of tries does not run out")
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
