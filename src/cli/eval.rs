//! `elf eval`

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::output::Output;
use super::progress::Progress;
use super::{import, start, wiring};
use crate::config::Config;
use crate::eval::{Dataset, Scores, of_ranking, p_value};
use crate::index::Filter;
use crate::search::{By, Request, Searcher};
use crate::store::Store;
use crate::worker::Worker;

/// Chunks that a search returns for each document that is measured: several chunks of one
/// document may be among the best.
const CHUNKS_PER_DOCUMENT: usize = 3;

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
    #[serde(skip)]
    ndcg: Vec<f64>,
}

/// Indexes the documents in a tenant of their own, searches for every query, and prints how well
/// dense, BM25 and hybrid search found the relevant ones.
pub async fn run(config: &Config, args: Args, out: Output) -> anyhow::Result<()> {
    let dataset = Dataset::read(&args.folder, &args.split)?;
    let context = start::prepare_context(config, false).await?;
    let store = context.stores.store.clone();
    let searcher = wiring::searcher(&context, config);
    let worker = Arc::new(Worker::new(context, &config.worker, &config.outbox));
    // A run with --keep may have left the documents of another folder.
    let ids: Vec<String> = dataset.documents.iter().map(|d| d.id.clone()).collect();
    remove(&store, &args.tenant, &ids).await?;
    let imported = import::import_documents(&store, &dataset.documents, &args.tenant).await?;
    let done = async {
        index(&worker, imported).await?;
        measure(&searcher, &dataset, &args).await
    };
    let done = done.await;
    if !args.keep {
        remove(&store, &args.tenant, &[]).await?;
        worker.drain(CancellationToken::new()).await?;
    }
    let report = done?;
    out.report(&report, lines)
}

async fn index(worker: &Arc<Worker>, notes: u64) -> anyhow::Result<()> {
    let progress = Progress::start("indexing", {
        let worker = worker.clone();
        move || (worker.totals().notes, notes)
    });
    let drained = worker.drain(CancellationToken::new()).await;
    progress.finish();
    Ok(drained?)
}

/// Deletes the documents of evaluations, but not those with the ids `keep`.
async fn remove(store: &Store, tenant: &str, keep: &[String]) -> anyhow::Result<()> {
    let deleted = store.delete_evaluated(tenant, import::EVALUATION_AGENT, keep);
    deleted
        .await
        .context("failed to delete the documents of an evaluation")?;
    Ok(())
}

async fn measure(searcher: &Searcher, dataset: &Dataset, args: &Args) -> anyhow::Result<Report> {
    let dense = measure_by(searcher, dataset, args, By::Dense).await?;
    let bm25 = measure_by(searcher, dataset, args, By::Bm25).await?;
    let hybrid = measure_by(searcher, dataset, args, By::Hybrid).await?;
    let p_against = |other: &Measured| {
        let pairs = hybrid.ndcg.iter().zip(&other.ndcg);
        p_value(&pairs.map(|(a, b)| a - b).collect::<Vec<f64>>())
    };
    Ok(Report {
        documents: dataset.documents.len(),
        queries: dataset.queries.len(),
        k: args.k.into(),
        p_hybrid_dense: p_against(&dense),
        p_hybrid_bm25: p_against(&bm25),
        dense,
        bm25,
        hybrid,
    })
}

async fn measure_by(
    searcher: &Searcher,
    dataset: &Dataset,
    args: &Args,
    by: By,
) -> anyhow::Result<Measured> {
    let k = usize::from(args.k);
    let (mut scores, mut times, mut empty) = (Vec::new(), Vec::new(), 0);
    for (id, text) in &dataset.queries {
        let request = Request {
            text: text.clone(),
            by,
            filter: Filter {
                keywords: BTreeMap::from([("tenant_id".to_owned(), args.tenant.clone())]),
                ..Filter::default()
            },
            limit: k * CHUNKS_PER_DOCUMENT,
        };
        let began = Instant::now();
        let items = searcher.search(&request).await?;
        times.push(began.elapsed().as_secs_f64() * 1e3);
        let mut seen = HashSet::new();
        let ranking: Vec<String> = items
            .into_iter()
            .filter(|item| seen.insert(item.note_id))
            .filter_map(|item| item.key)
            .collect();
        empty += usize::from(ranking.is_empty());
        scores.push(of_ranking(&ranking, &dataset.relevant[id], k));
    }
    times.sort_by(f64::total_cmp);
    let percentile = |share: f64| times[((times.len() - 1) as f64 * share).round() as usize];
    Ok(Measured {
        mean: Scores::mean(&scores),
        zero_results: f64::from(u32::try_from(empty)?) / scores.len() as f64,
        p50_ms: percentile(0.5),
        p99_ms: percentile(0.99),
        ndcg: scores.iter().map(|scores| scores.ndcg).collect(),
    })
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
