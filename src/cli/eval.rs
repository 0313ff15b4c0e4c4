//! `elf eval`

use std::collections::BTreeMap;
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
use crate::eval::{Certainty, Comparison, Dataset, Measured, Quote, Report, Scores, of_ranking};
use crate::index::Filter;
use crate::search::{By, Item, Request, Searcher};
use crate::serving;
use crate::store::{PooledConnection, Store};
use crate::worker::{Pipeline, Worker, WorkerError};

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
pub async fn run(config: &Config, args: Args, out: Output) -> anyhow::Result<()> {
    let dataset = Dataset::read(&args.folder, &args.split)?;
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
        // The first error says why: the removal may have failed for the same reason.
        let report = measured?;
        removed?;
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
        let deleted = self.store.delete_evaluated(tenant, agent, &[]).await;
        let deleted = deleted.context("failed to delete the documents of the evaluation")?;
        self.enqueue(&deleted).await?;
        // Any worker deletes the points; without one, this does.
        Ok(self.worker.drain(CancellationToken::new()).await?)
    }
}

/// Asks each query by each of the ways. The ways take turns to be first, so that none of them
/// always meets warm caches.
async fn measure(searcher: &Searcher, dataset: &Dataset, args: &Args) -> anyhow::Result<Report> {
    let mut ways: Vec<Way> = [By::Dense, By::Bm25, By::Hybrid]
        .into_iter()
        .map(|by| Way::new(by, false))
        .collect();
    if searcher.has_reranker() {
        ways.push(Way::new(By::Hybrid, true));
    }
    for (id, text) in &dataset.queries {
        // The times are those of the search alone.
        let embedded = searcher.embed_ahead(&request(args, text, &ways[0])).await;
        embedded.with_context(|| format!("query {id:?}"))?;
        ways.rotate_left(1);
        for way in &mut ways {
            let asked = way.ask(searcher, dataset, (id, text), args);
            asked.await.with_context(|| format!("query {id:?}"))?;
        }
    }
    let mut unanswered = Way::new(By::Hybrid, false);
    for (id, text) in &dataset.unanswered {
        let asked = unanswered.ask(searcher, dataset, (id, text), args);
        asked.await.with_context(|| format!("query {id:?}"))?;
    }
    ways.sort_by_key(|way| (way.by, way.rerank));
    let hybrid = ways.iter().find(|way| way.by == By::Hybrid);
    let answered = hybrid.and_then(|way| way.relevance.as_deref());
    let certainty = answered.zip(unanswered.relevance.as_deref());
    let certainty = certainty.map(|(answered, unanswered)| Certainty::of(answered, unanswered));
    let mut measured = ways.into_iter().map(Way::measured);
    let mut next = || measured.next().expect("there are three ways at least");
    let (dense, bm25, hybrid) = (next(), next(), next());
    let reranked = measured.next();
    Ok(Report {
        documents: dataset.documents.len(),
        queries: dataset.queries.len(),
        k: args.k.into(),
        p_hybrid_dense: hybrid.p_against(&dense),
        p_hybrid_bm25: hybrid.p_against(&bm25),
        p_reranked_hybrid: reranked.as_ref().map(|way| way.p_against(&hybrid)),
        dense,
        bm25,
        hybrid,
        reranked,
        certainty,
    })
}

fn request(args: &Args, text: &str, way: &Way) -> Request {
    let keywords = BTreeMap::from([
        ("tenant_id".to_owned(), args.tenant.clone()),
        ("agent_id".to_owned(), import::EVALUATION_AGENT.to_owned()),
    ]);
    Request {
        text: text.to_owned(),
        by: way.by,
        rerank: way.rerank,
        filter: Filter {
            keywords,
            ..Filter::default()
        },
        limit: args.k.into(),
    }
}

/// One way to search, and what it answered so far.
struct Way {
    by: By,
    rerank: bool,
    scores: BTreeMap<String, Scores>,
    times_ms: Vec<f64>,
    empty: usize,
    /// Of the best hit of each query; none if the search does not say.
    relevance: Option<Vec<f32>>,
    quotes: usize,
    quotes_in_chunks: usize,
    quotes_in_contexts: usize,
}

impl Way {
    fn new(by: By, rerank: bool) -> Self {
        Self {
            by,
            rerank,
            scores: BTreeMap::new(),
            times_ms: Vec::new(),
            empty: 0,
            relevance: Some(Vec::new()),
            quotes: 0,
            quotes_in_chunks: 0,
            quotes_in_contexts: 0,
        }
    }

    async fn ask(
        &mut self,
        searcher: &Searcher,
        dataset: &Dataset,
        (id, text): (&str, &str),
        args: &Args,
    ) -> anyhow::Result<()> {
        let mut request = request(args, text, self);
        // As BEIR measures: a query that is a document does not find itself.
        let is_document = dataset.queried_documents.contains(id);
        request.limit += usize::from(is_document);
        let began = Instant::now();
        let mut answer = searcher.search(&request).await?;
        self.times_ms.push(began.elapsed().as_secs_f64() * 1e3);
        if let Some(missing) = answer.degraded.first() {
            anyhow::bail!("the search was answered in part: {}", missing.reason);
        }
        answer
            .items
            .retain(|item| !is_document || item.key.as_deref() != Some(id));
        answer.items.truncate(args.k.into());
        self.empty += usize::from(answer.items.is_empty());
        self.look_at_relevance(&answer.items);
        for quote in dataset.quotes.get(id).into_iter().flatten() {
            self.look_for(quote, &answer.items);
        }
        let keys = answer.items.into_iter().filter_map(|item| item.key);
        let ranking: Vec<String> = keys.collect();
        let scores = of_ranking(&ranking, &dataset.relevant[id], args.k.into());
        self.scores.insert(id.to_owned(), scores);
        Ok(())
    }

    fn look_at_relevance(&mut self, items: &[Item]) {
        let is_known = items.iter().all(|item| item.relevance.is_some());
        match &mut self.relevance {
            Some(of_queries) if is_known => {
                let of_items = items.iter().filter_map(|item| item.relevance);
                of_queries.push(of_items.reduce(f32::max).unwrap_or(0.0));
            }
            _ => self.relevance = None,
        }
    }

    /// Counts a quoted answer, and whether the result of its document has it whole.
    fn look_for(&mut self, quote: &Quote, items: &[Item]) {
        self.quotes += 1;
        let of_document = |item: &&Item| item.key.as_ref() == Some(&quote.document);
        let Some(item) = items.iter().find(of_document) else {
            return;
        };
        let has = |start, end| start <= quote.range.start && quote.range.end <= end;
        self.quotes_in_chunks += usize::from(has(item.start_offset, item.end_offset));
        let context = &item.context;
        self.quotes_in_contexts += usize::from(has(context.start_offset, context.end_offset));
    }

    fn measured(self) -> Measured {
        let mut times = self.times_ms;
        times.sort_by(f64::total_cmp);
        let percentile = |share: f64| times[((times.len() - 1) as f64 * share).round() as usize];
        let of_quotes = |found: usize| (self.quotes > 0).then(|| found as f64 / self.quotes as f64);
        let scores: Vec<Scores> = self.scores.values().copied().collect();
        Measured {
            mean: Scores::mean(&scores),
            zero_results: self.empty as f64 / scores.len() as f64,
            span_recall: of_quotes(self.quotes_in_chunks),
            context_recall: of_quotes(self.quotes_in_contexts),
            p50_ms: percentile(0.5),
            p99_ms: percentile(0.99),
            ndcg_by_query: (self.scores.into_iter())
                .map(|(id, scores)| (id, scores.ndcg))
                .collect(),
        }
    }
}
