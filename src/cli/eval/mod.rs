//! `elf eval`

mod scratch;
mod trials;
mod way;

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use serde::Serialize;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::output::Output;
use super::progress::Progress;
use super::signals::{in_flight, stop_on_signals};
use super::{import, start, value, wiring};
use crate::config::Config;
use crate::eval::{Comparison, Dataset, Report};
use crate::search::Searcher;
use crate::serving;
use crate::store::{PooledConnection, Store};
use crate::worker::{Pipeline, Worker, WorkerError};
use way::measure;

/// The first half of the advisory lock of an evaluation; the second is its tenant.
const LOCK: i32 = 0x656c_6665;
/// Why there is no report after a signal.
const STOPPED: &str = "stopped before the end, nothing was measured";
/// The defaults of the arguments.
pub(super) const DEFAULT_SPLIT: &str = "test";
pub(super) const DEFAULT_TENANT: &str = "elf-eval";
/// How often the documents that are indexed are counted, for the progress.
const COUNT_EVERY: Duration = Duration::from_secs(1);
/// How often to look whether another worker has indexed the rest.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Arguments of `elf eval`.
#[derive(clap::Args)]
pub struct Args {
    /// A folder in the format of BEIR: corpus.jsonl, queries.jsonl, qrels/SPLIT.tsv
    pub(super) folder: PathBuf,
    /// The file of qrels/ that names the relevant documents
    #[arg(long, default_value = DEFAULT_SPLIT)]
    pub(super) split: String,
    /// Measure the first K documents of each ranking, 1 to 100
    #[arg(short, long, default_value_t = 10, value_parser = value::whole::<1, 100>)]
    pub(super) k: u16,
    /// The tenant of the documents
    #[arg(long, default_value = DEFAULT_TENANT, value_parser = value::tenant)]
    pub(super) tenant: String,
    /// Keep the documents, so that the next run embeds nothing
    #[arg(long)]
    pub(super) keep: bool,
    /// Compare with an earlier report of the same folder: the output of `elf eval FOLDER --json`
    #[arg(long, value_name = "FILE")]
    pub(super) against: Option<PathBuf>,
    /// Fail if hybrid search finds less than in that report; with a reranker in both, if reranked search does
    #[arg(long, requires = "against")]
    pub(super) gate: bool,
    /// Measure again with other settings of `[chunking]`, `[search]`, `[providers]` or BM25, in a database and a
    /// collection of their own: `--try 'chunking.strategy = "markdown", chunking.max_tokens = 256'`; may be repeated
    #[arg(
        long = "try",
        value_name = "SETTINGS",
        conflicts_with_all = ["tenant", "keep", "against"]
    )]
    pub(super) trials: Vec<String>,
}

/// What is printed.
#[derive(Serialize)]
struct Printed {
    #[serde(flatten)]
    report: Report,
    /// With the report of `--against`.
    #[serde(skip_serializing_if = "Option::is_none")]
    comparison: Option<Comparison>,
}

/// Indexes the documents in a tenant of their own, searches for every query, and prints how well
/// dense, BM25 and hybrid search found the relevant ones, and with a reranker also reranked search.
pub async fn run(config: &Config, path: &Path, args: Args, out: Output) -> anyhow::Result<()> {
    let dataset = Dataset::read(&args.folder, &args.split)?;
    if !args.trials.is_empty() {
        let trials = Box::pin(trials::run(config, path, &args, &dataset)).await?;
        return out.report(&trials, trials::Trials::table);
    }
    let before = args.against.as_deref().map(read_report).transpose()?;
    let stop = stop_on_signals(&format!(
        "{}; {}",
        in_flight(config),
        match args.keep {
            true => "the documents stay indexed",
            false => "then the documents are deleted",
        }
    ))?;
    let connecting = Box::pin(start::connect_and_ensure_ready(config, false));
    let context = stop.run_until_cancelled(connecting).await;
    let context = context.context(STOPPED)??;
    // Searches ask the alias, which serves the active version.
    serving::check_version_is_active(&context.serving.store, &context.version).await?;
    let searcher = wiring::searcher(&context, config).await?;
    let evaluation = Evaluation::new(context, searcher, config, stop);
    let report = evaluation.run(&dataset, &args).await?;
    let comparison = match (before, &args.against) {
        (Some(before), Some(file)) => Some(compared(&before, &report, file)?),
        _ => None,
    };
    let is_worse = comparison.as_ref().is_some_and(Comparison::is_worse);
    let printed = Printed { report, comparison };
    out.report(&printed, lines)?;
    anyhow::ensure!(!(args.gate && is_worse), "a search finds less than before");
    Ok(())
}

pub(super) fn read_report(file: &Path) -> anyhow::Result<Report> {
    let name = file.display();
    let text = std::fs::read_to_string(file).with_context(|| format!("failed to read {name}"))?;
    serde_json::from_str(&text).with_context(|| format!("{name} is no report of `elf eval --json`"))
}

/// How a report compares with the one of this file.
pub(super) fn compared(
    before: &Report,
    report: &Report,
    file: &Path,
) -> anyhow::Result<Comparison> {
    let name = file.display();
    Comparison::of(before, report)
        .map_err(|reason| anyhow::anyhow!("{name} cannot be compared: {reason}"))
}

fn lines(printed: &Printed) -> String {
    let table = printed.report.table();
    match &printed.comparison {
        Some(comparison) => format!("{table}\n{}", comparison.line()),
        None => table,
    }
}

/// What an evaluation works with.
pub(super) struct Evaluation {
    store: Store,
    version: String,
    searcher: Searcher,
    worker: Arc<Worker>,
    stop: CancellationToken,
    is_served: bool,
}

impl Evaluation {
    pub(super) fn new(
        context: Pipeline,
        searcher: Searcher,
        config: &Config,
        stop: CancellationToken,
    ) -> Self {
        Self {
            store: context.serving.store.clone(),
            version: context.version.name.clone(),
            searcher,
            worker: Arc::new(Worker::new(context, &config.worker, &config.outbox)),
            stop,
            is_served: true,
        }
    }

    /// Of a version that is not served yet.
    pub(super) fn before_swap(self) -> Self {
        Self {
            is_served: false,
            ..self
        }
    }

    /// Indexes the documents, measures, and deletes them.
    pub(super) async fn run(&self, dataset: &Dataset, args: &Args) -> anyhow::Result<Report> {
        let _alone = self.lock(&args.tenant).await?;
        let measured = self.measure(dataset, args).await;
        let removed = match args.keep {
            true => Ok(()),
            false => self.remove(&args.tenant).await,
        };
        // The first error says why: the removal may have failed for the same reason. It costs no figures.
        let report = measured?;
        if let Err(error) = removed {
            let error = format!("{error:#}");
            tracing::warn!(
                tenant = args.tenant,
                error,
                "notes of the evaluation are left: the next one deletes them"
            );
        }
        Ok(report)
    }

    /// Makes sure that no other evaluation uses the tenant, until the connection is dropped.
    async fn lock(&self, tenant: &str) -> anyhow::Result<PooledConnection> {
        let mut connection = self.store.pool().acquire().await?;
        let is_alone: bool = sqlx::query_scalar("select pg_try_advisory_lock($1, hashtext($2))")
            .bind(LOCK)
            .bind(tenant)
            .fetch_one(&mut *connection)
            .await?;
        anyhow::ensure!(
            is_alone,
            "another evaluation uses the tenant {tenant:?}: wait for its end, or use --tenant"
        );
        connection.close_on_drop();
        Ok(connection)
    }

    async fn measure(&self, dataset: &Dataset, args: &Args) -> anyhow::Result<Report> {
        let (store, agent) = (&self.store, import::EVALUATION_AGENT);
        anyhow::ensure!(
            !store.has_other_agents(&args.tenant, agent).await?,
            "the tenant {:?} has notes of an application: use --tenant with a name of its own",
            args.tenant
        );
        let (due, _) = store.due_notes(&self.version).await?;
        if due > 0 {
            tracing::warn!(
                notes = due,
                "notes of the application are due: they are indexed first"
            );
        }
        // A run with --keep may have left the documents of another folder.
        let ids: Vec<String> = dataset.documents.iter().map(|d| d.id.clone()).collect();
        store.delete_evaluated(&args.tenant, agent, &ids).await?;
        import::import_documents(store, &dataset.documents, &args.tenant).await?;
        let notes = store.evaluated_notes(&args.tenant, agent).await?;
        self.enqueue(&notes).await?;
        self.index(dataset.documents.len() as u64, &args.tenant)
            .await?;
        let measuring = measure(&self.searcher, dataset, args);
        let measured = self.stop.run_until_cancelled(measuring).await;
        measured.context(STOPPED)?
    }

    /// A version that is not served learns of a change when a worker of the served one claims it.
    /// That worker may not run now.
    async fn enqueue(&self, notes: &[Uuid]) -> anyhow::Result<()> {
        match self.is_served {
            true => Ok(()),
            false => Ok(self.store.requeue(&self.version, notes).await?),
        }
    }

    /// Returns when every document is indexed, by this worker or by another one.
    async fn index(&self, documents: u64, tenant: &str) -> anyhow::Result<()> {
        // Not what the worker has done: that may be notes of the application, and other workers
        // may index the documents.
        let indexed = Arc::new(AtomicU64::new(0));
        let progress = Progress::start("indexing documents", {
            let indexed = indexed.clone();
            move || (indexed.load(Ordering::Relaxed), documents)
        });
        let done = tokio::select! {
            done = self.index_all(tenant) => done,
            never = self.count_indexed(tenant, documents, &indexed) => match never {},
        };
        progress.finish();
        done
    }

    /// Counts the documents that are indexed. Runs until dropped.
    async fn count_indexed(&self, tenant: &str, documents: u64, indexed: &AtomicU64) -> Infallible {
        let agent = import::EVALUATION_AGENT;
        loop {
            let began = Instant::now();
            let waiting = self.store.evaluated_waiting(tenant, agent, &self.version);
            // An outage is no reason to end: the worker waits for Postgres, and logs it.
            if let Ok((waiting, _)) = waiting.await {
                indexed.store(documents.saturating_sub(waiting), Ordering::Relaxed);
            }
            // Counting reads the whole table where the application has no index by tenant.
            tokio::time::sleep(COUNT_EVERY.max(began.elapsed() * 20)).await;
        }
    }

    async fn index_all(&self, tenant: &str) -> anyhow::Result<()> {
        let agent = import::EVALUATION_AGENT;
        loop {
            match self.worker.drain(self.stop.clone()).await {
                Err(WorkerError::Stopped) => anyhow::bail!(STOPPED),
                drained => drained?,
            }
            let waiting = self.store.evaluated_waiting(tenant, agent, &self.version);
            let (waiting, dead) = waiting.await?;
            anyhow::ensure!(
                dead == 0,
                "{dead} documents cannot be indexed: `elf dead list` says why"
            );
            if waiting == 0 {
                return Ok(());
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Deletes the documents, and their points.
    async fn remove(&self, tenant: &str) -> anyhow::Result<()> {
        let agent = import::EVALUATION_AGENT;
        let deleted = self.store.delete_evaluated(tenant, agent, &[]).await?;
        self.enqueue(&deleted).await?;
        // Any worker deletes the points; without one, this does.
        Ok(self.worker.drain(CancellationToken::new()).await?)
    }
}
