//! `elf eval`

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use serde::Serialize;
use sqlx::Postgres;
use sqlx::pool::PoolConnection;
use tokio_util::sync::CancellationToken;

use super::output::Output;
use super::progress::Progress;
use super::signals::stop_on_signals;
use super::{import, start, wiring};
use crate::config::Config;
use crate::eval::{Dataset, Relevant, Scores, of_ranking, p_value};
use crate::index::Filter;
use crate::registry;
use crate::search::{By, Request, Searcher};
use crate::store::Store;
use crate::worker::Worker;

/// The first half of the advisory lock of an evaluation; the second is its tenant.
const LOCK: i32 = 0x656c_6665;
/// How often to look whether another worker has indexed the rest.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Arguments of `elf eval`.
#[derive(clap::Args)]
pub struct Args {
    /// A folder in the format of BEIR: corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv
    folder: PathBuf,
    /// Which file of qrels has the relevant documents
    #[arg(long, default_value = "test")]
    split: String,
    /// Measure the first K documents of each ranking
    #[arg(short, long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=100))]
    k: u16,
    /// The tenant that the documents are indexed in, and deleted from at the end
    #[arg(long, default_value = "elf-eval")]
    tenant: String,
    /// Keep the documents indexed, so that the next run embeds nothing
    #[arg(long)]
    keep: bool,
}

/// What an evaluation found.
#[derive(Serialize)]
struct Report {
    documents: usize,
    queries: usize,
    k: usize,
    dense: Measured,
    bm25: Measured,
    hybrid: Measured,
    /// Two-sided p-values of a paired randomisation test over nDCG.
    p_hybrid_dense: f64,
    p_hybrid_bm25: f64,
}

/// One way to search, measured.
#[derive(Serialize)]
struct Measured {
    #[serde(flatten)]
    mean: Scores,
    /// The share of queries without any result.
    zero_results: f64,
    p50_ms: f64,
    p99_ms: f64,
}

/// Indexes the documents in a tenant of their own, searches for every query, and prints how well
/// dense, BM25 and hybrid search found the relevant ones.
pub async fn run(config: &Config, args: Args, out: Output) -> anyhow::Result<()> {
    let dataset = Dataset::read(&args.folder, &args.split)?;
    let stop = stop_on_signals("the evaluation ends, and its documents are deleted")?;
    let context = start::prepare_context(config, false).await?;
    // Searches ask the alias, which serves the active version.
    registry::check_version_is_active(&context.stores.store, &context.version).await?;
    let evaluation = Evaluation {
        store: context.stores.store.clone(),
        version: context.version.name.clone(),
        searcher: wiring::searcher(&context, config),
        worker: Arc::new(Worker::new(context, &config.worker, &config.outbox)),
        stop,
    };
    let _alone = evaluation.lock(&args.tenant).await?;
    let measured = evaluation.measure(&dataset, &args).await;
    if args.keep {
        return out.report(&measured?, lines);
    }
    let removed = evaluation.remove(&args.tenant).await;
    // The first error says why: the removal may have failed for the same reason.
    let report = measured?;
    out.report(&report, lines)?;
    removed
}

/// What an evaluation works with.
struct Evaluation {
    store: Store,
    version: String,
    searcher: Searcher,
    worker: Arc<Worker>,
    stop: CancellationToken,
}

impl Evaluation {
    /// Makes sure that no other evaluation uses the tenant, until the connection is dropped.
    async fn lock(&self, tenant: &str) -> anyhow::Result<PoolConnection<Postgres>> {
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
        self.index(dataset.documents.len() as u64, &args.tenant)
            .await?;
        measure(&self.searcher, dataset, args).await
    }

    /// Returns when every document is indexed, by this worker or by another one.
    async fn index(&self, documents: u64, tenant: &str) -> anyhow::Result<()> {
        let progress = Progress::start("indexing", {
            let worker = self.worker.clone();
            move || (worker.totals().notes, documents)
        });
        let indexed = self.index_all(tenant).await;
        progress.finish();
        indexed
    }

    async fn index_all(&self, tenant: &str) -> anyhow::Result<()> {
        let agent = import::EVALUATION_AGENT;
        loop {
            self.worker.drain(self.stop.clone()).await?;
            anyhow::ensure!(!self.stop.is_cancelled(), "stopped before the end");
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
        deleted.context("failed to delete the documents of the evaluation")?;
        // Any worker deletes the points; without one, this does.
        Ok(self.worker.drain(CancellationToken::new()).await?)
    }
}

/// Asks each query by each of the ways. The ways take turns to be first, so that none of them
/// always meets warm caches.
async fn measure(searcher: &Searcher, dataset: &Dataset, args: &Args) -> anyhow::Result<Report> {
    let mut ways = [By::Dense, By::Bm25, By::Hybrid].map(Way::new);
    for (id, text) in &dataset.queries {
        // The times are those of the search alone.
        let embedded = searcher.embed_ahead(text).await;
        embedded.with_context(|| format!("query {id:?}"))?;
        ways.rotate_left(1);
        for way in &mut ways {
            let asked = way.ask(searcher, text, &dataset.relevant[id], args);
            asked.await.with_context(|| format!("query {id:?}"))?;
        }
    }
    ways.sort_by_key(|way| way.by);
    let [dense, bm25, hybrid] = ways;
    let p_against = |other: &Way| {
        let pairs = hybrid.scores.iter().zip(&other.scores);
        p_value(&pairs.map(|(a, b)| a.ndcg - b.ndcg).collect::<Vec<f64>>())
    };
    Ok(Report {
        documents: dataset.documents.len(),
        queries: dataset.queries.len(),
        k: args.k.into(),
        p_hybrid_dense: p_against(&dense),
        p_hybrid_bm25: p_against(&bm25),
        dense: dense.measured()?,
        bm25: bm25.measured()?,
        hybrid: hybrid.measured()?,
    })
}

/// One way to search, and what it answered so far.
struct Way {
    by: By,
    /// One for each query, in order.
    scores: Vec<Scores>,
    times_ms: Vec<f64>,
    empty: u32,
}

impl Way {
    fn new(by: By) -> Self {
        Self {
            by,
            scores: Vec::new(),
            times_ms: Vec::new(),
            empty: 0,
        }
    }

    async fn ask(
        &mut self,
        searcher: &Searcher,
        text: &str,
        relevant: &Relevant,
        args: &Args,
    ) -> anyhow::Result<()> {
        let limit = usize::from(args.k);
        let request = Request {
            text: text.to_owned(),
            by: self.by,
            filter: Filter {
                keywords: BTreeMap::from([
                    ("tenant_id".to_owned(), args.tenant.clone()),
                    ("agent_id".to_owned(), import::EVALUATION_AGENT.to_owned()),
                ]),
                ..Filter::default()
            },
            limit,
        };
        let began = Instant::now();
        let answer = searcher.search(&request).await?;
        self.times_ms.push(began.elapsed().as_secs_f64() * 1e3);
        if let Some(missing) = answer.degraded.first() {
            anyhow::bail!("the search was answered in part: {}", missing.reason);
        }
        let keys = answer.items.into_iter().filter_map(|item| item.key);
        let ranking: Vec<String> = keys.collect();
        self.empty += u32::from(ranking.is_empty());
        self.scores.push(of_ranking(&ranking, relevant, limit));
        Ok(())
    }

    fn measured(self) -> anyhow::Result<Measured> {
        let mut times = self.times_ms;
        times.sort_by(f64::total_cmp);
        let percentile = |share: f64| times[((times.len() - 1) as f64 * share).round() as usize];
        Ok(Measured {
            mean: Scores::mean(&self.scores),
            zero_results: f64::from(self.empty) / f64::from(u32::try_from(self.scores.len())?),
            p50_ms: percentile(0.5),
            p99_ms: percentile(0.99),
        })
    }
}

fn lines(report: &Report) -> String {
    let Report {
        documents,
        queries,
        k,
        ..
    } = report;
    let mut text = format!(
        "{documents} documents, {queries} queries, the first {k} documents of each\n\
         {:<8}{:>8}{:>8}{:>8}{:>8}{:>11}{:>8}{:>9}{:>9}",
        "", "nDCG", "MRR", "MAP", "recall", "precision", "empty", "p50 ms", "p99 ms"
    );
    for (name, of) in [
        ("dense", &report.dense),
        ("BM25", &report.bm25),
        ("hybrid", &report.hybrid),
    ] {
        let Scores {
            ndcg,
            mrr,
            map,
            recall,
            precision,
        } = of.mean;
        text += &format!(
            "\n{name:<8}{ndcg:>8.3}{mrr:>8.3}{map:>8.3}{recall:>8.3}{precision:>11.3}{:>8.3}{:>9.1}{:>9.1}",
            of.zero_results, of.p50_ms, of.p99_ms
        );
    }
    text + &format!(
        "\nhybrid against dense p = {:.4}, against BM25 p = {:.4} (paired randomisation over nDCG)",
        report.p_hybrid_dense, report.p_hybrid_bm25
    )
}
