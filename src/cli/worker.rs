//! `elf worker`

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::admin_port::AdminPort;
use super::output::{Output, counted};
use super::progress::{Count, Progress};
use super::signals::{in_flight, stop_on_signals};
use super::start::{connect_and_ensure_ready, ensure_ready_with_retries};
use super::{serve as http_api, systemd, wiring};
use crate::config::Config;
use crate::eval::golden;
use crate::http::bounds::Bounds;
use crate::store::{self, OutboxCounts, Store, StoreError};
use crate::worker::{Pipeline, Report, Worker, WorkerError};

/// Why a note is paused, as [`store::OutboxCounts`] says.
const PAUSED: &str =
    "an application holds their rows, Postgres did not take them, or the index did not answer";

/// How soon `--once` looks again for notes whose lease has ended.
const LEASES_POLL: Duration = Duration::from_secs(1);

/// Arguments of `elf worker`.
#[derive(clap::Args)]
pub struct Args {
    /// Index what is due, then exit
    ///
    /// It waits for the leases of a worker that was killed. It fails if notes are left, such as those of a worker that lives, or if
    /// Postgres or Qdrant is unavailable at the start, or one of them or the provider for worker.grace_secs later.
    #[arg(long)]
    once: bool,
    /// Bring the schema up to date first
    #[arg(long)]
    migrate: bool,
}

impl Args {
    /// Whether the worker ends by itself.
    pub fn is_once(&self) -> bool {
        self.once
    }
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
    let stop = stop_on_signals(&in_flight(config))?;
    let connecting = Box::pin(connect_and_ensure_ready(config, migrate));
    let Some(pipeline) = stop.run_until_cancelled(connecting).await else {
        return Err(WorkerError::Stopped.into());
    };
    let pipeline = pipeline?;
    let (store, version) = (
        pipeline.serving.store.clone(),
        pipeline.version.name.clone(),
    );
    // The total is notes and not outbox rows: a note may have several rows. The share is in
    // bytes, because the time that a note takes follows the length of its text.
    let (due, bytes) = match store.due_notes(&version).await {
        // The worker finds the note.
        Err(StoreError::Unreadable(_)) => (0, 0),
        counted => counted?,
    };
    let worker = Arc::new(Worker::new(pipeline, &config.worker, &config.outbox));
    let progress = Progress::start_weighed("indexing", {
        let worker = worker.clone();
        move || {
            let done = worker.totals();
            Count {
                done: done.notes,
                // Notes that applications write meanwhile are indexed too.
                total: due.max(done.notes),
                share: done.bytes as f64 / bytes.max(1) as f64,
                beside: format!(" notes, {}", counted(done.chunks, "chunk", "chunks")),
            }
        }
    });
    let drained = drain_to_the_end(&worker, &store, &version, config, &stop).await;
    progress.finish();
    drained?;
    Ok(worker.totals())
}

/// Also indexes what a worker that was killed had leased, and what is paused. Another worker that lives indexes what it
/// has leased itself.
async fn drain_to_the_end(
    worker: &Worker,
    store: &Store,
    version: &str,
    config: &Config,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let leases_end = Instant::now() + config.worker.lease();
    let (mut told_leased, mut told_paused) = (false, false);
    loop {
        worker.drain(stop.clone()).await?;
        let OutboxCounts { leased, paused, .. } = store.outbox_counts(Some(version)).await?;
        if leased + paused == 0 {
            return Ok(());
        }
        if Instant::now() > leases_end {
            let left = [
                (leased, "leased by another worker, which works on them"),
                (paused, PAUSED),
            ];
            let left: Vec<String> = left
                .into_iter()
                .filter(|(rows, _)| *rows > 0)
                .map(|(rows, why)| {
                    format!(
                        "{} left: {why}",
                        counted(rows.unsigned_abs(), "outbox row is", "outbox rows are")
                    )
                })
                .collect();
            anyhow::bail!("{}; run it again later", left.join("; "));
        }
        let secs = config.worker.lease_secs;
        if leased > 0 && !std::mem::replace(&mut told_leased, true) {
            tracing::info!(
                rows = leased,
                secs,
                "waiting for the leases of another worker to end"
            );
        }
        if paused > 0 && !std::mem::replace(&mut told_paused, true) {
            tracing::info!(rows = paused, secs, "waiting for paused notes: {PAUSED}");
        }
        stop.run_until_cancelled(tokio::time::sleep(LEASES_POLL))
            .await;
    }
}

async fn serve(config: &Config, migrate: bool) -> anyhow::Result<Report> {
    for warning in config.warnings() {
        tracing::warn!("{warning}");
    }
    let (config, for_api) = &shared_between_worker_and_api(config);
    let stop = stop_on_signals(&in_flight(config))?;
    let bounds = Bounds::of_this_process(for_api);
    let admin_port = AdminPort::start(&config.service, bounds).await?;
    let begun = tokio::select! {
        begun = ensure_ready_with_retries(config, migrate, &admin_port.health, &stop) => begun?,
        never = systemd::feed_watchdog() => match never {},
    };
    let Some(pipeline) = begun else {
        return Ok(Report::default());
    };
    let (version, index) = (
        pipeline.version.name.clone(),
        pipeline.serving.index.describe(),
    );
    let worker = Arc::new(Worker::new(
        pipeline.clone(),
        &config.worker,
        &config.outbox,
    ));
    let api = match &config.service.http_bind {
        Some(bind) => {
            let mut pipeline = pipeline.clone();
            pipeline.serving.store = wiring::store(for_api).await?;
            Some(http_api::start(for_api, bind, pipeline, bounds, stop.clone()).await?)
        }
        None => None,
    };
    let watching_quality = watch_quality(&pipeline, &worker, config).await;
    let watching = admin_port.watch(pipeline, worker.clone()).await;
    tracing::info!(version, index, "worker started");
    systemd::ready("working");
    let told = async {
        stop.cancelled().await;
        systemd::stopping();
    };
    let answered = async {
        if let Some(api) = api {
            http_api::drain(api, config, &stop).await;
        }
    };
    tokio::join!(worker.run(stop.clone()), told, answered);
    drop((watching, watching_quality));
    tracing::info!("worker stopped");
    Ok(worker.totals())
}

/// Asks the golden questions, if there are any, until the returned handle is dropped.
async fn watch_quality(
    pipeline: &Pipeline,
    worker: &Arc<Worker>,
    config: &Config,
) -> Option<AbortOnDropHandle<()>> {
    let folder = config.quality.folder.as_ref().map(PathBuf::from)?;
    // To measure is no reason to index nothing.
    let searcher = wiring::searcher(pipeline, config).await;
    let searcher = searcher
        .inspect_err(|error| {
            tracing::warn!(error = format!("{error:#}"), "golden questions not asked");
        })
        .ok()?;
    let interval = Duration::from_secs(config.quality.interval_secs);
    let worker = worker.clone();
    let is_mine = move || worker.holds_upkeep_lease();
    let watching = golden::watch(searcher, folder, interval, is_mine);
    Some(AbortOnDropHandle::new(tokio::spawn(watching)))
}

/// The settings of the worker and those of its API, which has most connections: its clients share them, and
/// none may have all. Neither takes those of the other.
fn shared_between_worker_and_api(config: &Config) -> (Config, Config) {
    let (mut worker, mut api) = (config.clone(), config.clone());
    if config.service.http_bind.is_some() {
        let all = config.storage.postgres.pool_max_conns;
        let of_worker = (all / 3).max(store::LEAST_CONNECTIONS);
        worker.storage.postgres.pool_max_conns = of_worker;
        api.storage.postgres.pool_max_conns = all - of_worker;
    }
    (worker, api)
}

fn lines(report: &Report) -> String {
    format!(
        "{}, {} ({} embedded, {} reused), {}, {}, {:.1} s",
        counted(report.notes, "note", "notes"),
        counted(report.chunks, "chunk", "chunks"),
        report.embedded,
        report.reused,
        counted(report.points, "point", "points"),
        counted(report.dead, "dead letter", "dead letters"),
        report.seconds
    )
}
