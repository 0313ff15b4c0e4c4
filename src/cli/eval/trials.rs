//! `elf eval --try`: the same documents and queries under several settings.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use chrono::Utc;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::scratch::Scratch;
use super::{Args, Evaluation, STOPPED};
use crate::chunk::{NoteChunker, Subject};
use crate::cli::signals::stop_on_signals;
use crate::cli::{import, start, wiring};
use crate::config::{Bm25Options, Config};
use crate::eval::{Comparison, Dataset, Measured, Report, interval};
use crate::rebuild;
use crate::reindex::{self, Then};
use crate::serving;
use crate::verify;
use crate::worker::{Pipeline, Worker, hashed_chunks};

/// What the configuration itself is called.
const AS_CONFIGURED: &str = "as configured";

/// What is printed.
#[derive(Serialize)]
pub(super) struct Trials {
    /// The configuration first, then the others in the order of the command line.
    trials: Vec<Trial>,
}

/// The evaluation of one configuration.
#[derive(Serialize)]
struct Trial {
    /// What differs from the configuration.
    settings: String,
    /// Chunks of all documents.
    chunks: u64,
    /// Tokens of those chunks, each text once: what a provider counts.
    tokens: u64,
    /// US dollars; null without `providers.embedding.usd_per_million_tokens`.
    estimated_cost_usd: Option<f64>,
    /// Where the nDCG of hybrid search (reranked, with a reranker) lies in 95 of 100 such sets of queries.
    ndcg_interval: [f64; 2],
    /// Against the configuration itself; null for that.
    comparison: Option<Comparison>,
    #[serde(flatten)]
    report: Report,
}

/// A configuration to try.
struct Candidate {
    settings: String,
    config: Config,
}

/// Where the trials of one run happen, and what they ask.
struct Bench<'a> {
    args: &'a Args,
    dataset: &'a Dataset,
    stop: CancellationToken,
}

/// What the index holds.
struct Held {
    pipeline: Pipeline,
    bm25: Bm25Options,
}

/// Measures the configuration and each of `args.trials`.
pub(super) async fn run(
    config: &Config,
    path: &Path,
    args: &Args,
    dataset: &Dataset,
) -> anyhow::Result<Trials> {
    let candidates = candidates(config, path, &args.trials)?;
    let stop = stop_on_signals("then the database and the collections of the trials are removed")?;
    let scratch = Scratch::create(config).await?;
    let bench = Bench {
        args,
        dataset,
        stop,
    };
    let measured = Box::pin(bench.measure_all(&scratch, &candidates)).await;
    let removed = scratch.remove(config).await;
    // The first error says why: the removal may have failed for the same reason. It costs no figures.
    let trials = measured?;
    if let Err(error) = removed {
        let error = format!("{error:#}");
        tracing::warn!(error, "what the trials made is left");
    }
    Ok(Trials { trials })
}

/// The configuration, and those that the settings make of it.
fn candidates(config: &Config, path: &Path, trials: &[String]) -> anyhow::Result<Vec<Candidate>> {
    let mut candidates = vec![Candidate {
        settings: AS_CONFIGURED.to_owned(),
        config: config.clone(),
    }];
    for (number, settings) in (1..).zip(trials) {
        let changed = Config::load_with(path, settings)
            .with_context(|| format!("failed to read --try number {number}"))?;
        anyhow::ensure!(
            is_comparable(config, &changed),
            "--try number {number}: a trial may differ in chunking, search, providers and storage.qdrant.bm25"
        );
        candidates.push(Candidate {
            // One line of the table.
            settings: settings.split_whitespace().collect::<Vec<_>>().join(" "),
            config: changed,
        });
    }
    Ok(candidates)
}

/// Whether they differ only in what a trial may change.
fn is_comparable(config: &Config, changed: &Config) -> bool {
    let mut same = changed.clone();
    same.chunking = config.chunking.clone();
    same.search = config.search.clone();
    same.providers = config.providers.clone();
    same.storage.qdrant.bm25 = config.storage.qdrant.bm25.clone();
    same.without_effect.clone_from(&config.without_effect);
    same == *config
}

/// The order in which to measure: those with the same chunks and vectors one after the other, so that each
/// embedding version is built once.
fn order(candidates: &[Candidate]) -> Vec<usize> {
    let makes_same =
        |a: &Config, b: &Config| a.chunking == b.chunking && a.providers == b.providers;
    let first = |of: usize| {
        candidates
            .iter()
            .position(|other| makes_same(&other.config, &candidates[of].config))
    };
    let mut order: Vec<usize> = (0..candidates.len()).collect();
    order.sort_by_key(|of| first(*of));
    order
}

impl Bench<'_> {
    async fn measure_all(
        &self,
        scratch: &Scratch,
        candidates: &[Candidate],
    ) -> anyhow::Result<Vec<Trial>> {
        let mut trials = BTreeMap::new();
        let mut held = None;
        for at in order(candidates) {
            let Candidate { settings, config } = &candidates[at];
            let config = scratch.config(config)?;
            tracing::info!(settings, "trial begins");
            let next = self.build(&config, held.as_ref());
            let pipeline = next.await.with_context(|| settings.clone())?;
            held = Some(Held {
                pipeline: pipeline.clone(),
                bm25: config.storage.qdrant.bm25.clone(),
            });
            let trial = self.trial(settings, &config, pipeline);
            trials.insert(at, trial.await.with_context(|| settings.clone())?);
        }
        let mut trials: Vec<Trial> = trials.into_values().collect();
        compare(&mut trials)?;
        Ok(trials)
    }

    /// Makes chunks, vectors and points what this configuration asks for. A text that a trial before has
    /// embedded with the same model is not embedded again.
    async fn build(&self, config: &Config, held: Option<&Held>) -> anyhow::Result<Pipeline> {
        let Some(held) = held else {
            let ready = Box::pin(start::connect_and_ensure_ready(config, true));
            let pipeline = self.stop.run_until_cancelled(ready).await;
            return pipeline.context(STOPPED)?;
        };
        let setup = wiring::setup(config).await?;
        let index = held.pipeline.serving.index.clone();
        let pipeline = wiring::pipeline_of(setup, config, index);
        let is_served = pipeline.version.name == held.pipeline.version.name;
        if !is_served {
            let worker = Worker::new(pipeline.clone(), &config.worker, &config.outbox);
            let options = verify::Options {
                repair: false,
                ..verify::Options::repairing()
            };
            let (then, stop) = (Then::Swap, self.stop.clone());
            reindex::run(&pipeline, &worker, then, &options, stop).await?;
        } else if held.bm25 != config.storage.qdrant.bm25 {
            let options = rebuild::Options {
                swap_last: false,
                take_alias: false,
                keep_old: false,
                restart: true,
                notice: Arc::new(|_| {}),
            };
            let counts = Arc::new(serving::Progress::default());
            rebuild::run(&pipeline.serving, &options, counts, self.stop.clone()).await?;
        }
        Ok(pipeline)
    }

    async fn trial(
        &self,
        settings: &str,
        config: &Config,
        pipeline: Pipeline,
    ) -> anyhow::Result<Trial> {
        let (chunks, tokens) = count(&pipeline.chunker, self.dataset);
        let searcher = wiring::searcher(&pipeline, config).await?;
        let evaluation = Evaluation::new(pipeline, searcher, config, self.stop.clone());
        let report = evaluation.measure(self.dataset, self.args).await?;
        let price = config.providers.embedding.usd_per_million_tokens;
        let searched = report.reranked.as_ref().unwrap_or(&report.hybrid);
        let ndcg: Vec<f64> = searched.ndcg_by_query.values().copied().collect();
        Ok(Trial {
            settings: settings.to_owned(),
            chunks,
            tokens,
            estimated_cost_usd: price.map(|usd| usd * tokens as f64 / 1e6),
            ndcg_interval: interval(&ndcg),
            comparison: None,
            report,
        })
    }
}

/// The chunks of all documents, and the tokens to embed for them.
fn count(chunker: &NoteChunker, dataset: &Dataset) -> (u64, u64) {
    let subject = Subject {
        kind: import::EVALUATION_KIND,
        title: None,
        cuts: &[],
        updated_at: Utc::now(),
    };
    let (mut chunks, mut tokens) = (0, 0);
    let mut known = HashSet::new();
    for document in &dataset.documents {
        // A document that cannot be chunked ends the evaluation with its reason.
        for chunk in hashed_chunks(chunker, &document.text(), subject).unwrap_or_default() {
            chunks += 1;
            if known.insert(chunk.hash) {
                tokens += chunk.chunk.tokens as u64;
            }
        }
    }
    (chunks, tokens)
}

/// Compares each with the first.
fn compare(trials: &mut [Trial]) -> anyhow::Result<()> {
    let Some((first, others)) = trials.split_first_mut() else {
        return Ok(());
    };
    for trial in others {
        let comparison = Comparison::of(&first.report, &trial.report);
        trial.comparison = Some(comparison.map_err(anyhow::Error::msg)?);
    }
    Ok(())
}

impl Trials {
    /// For people.
    pub(super) fn table(&self) -> String {
        let settings = |trial: &Trial| trial.settings.chars().count();
        let width = self.trials.iter().map(settings).max().unwrap_or(0);
        let has_costs = self.trials.iter().any(|t| t.estimated_cost_usd.is_some());
        let has_spans = self
            .trials
            .iter()
            .any(|t| t.searched().span_recall.is_some());
        let mut lines = vec![String::new()];
        if let Some(trial) = self.trials.first() {
            let Report {
                documents,
                queries,
                k,
                ..
            } = &trial.report;
            lines[0] = format!(
                "{documents} documents, {queries} queries, the first {k} documents of each"
            );
        }
        let usd = if has_costs { "       USD" } else { "" };
        let spans = if has_spans { "   span  context" } else { "" };
        lines.push(format!(
            "{:width$}  {:>8}{:>11}{usd}{:>7}{:>16}{:>8}{:>8}{spans}{:>9}",
            "", "chunks", "tokens", "nDCG", "95%", "p", "recall", "p50 ms"
        ));
        lines.extend(
            self.trials
                .iter()
                .map(|trial| trial.line(width, has_costs, has_spans)),
        );
        lines.push("p: against the first, paired randomisation over nDCG".to_owned());
        lines.join("\n")
    }
}

impl Trial {
    /// By the best way to search that the configuration has.
    fn searched(&self) -> &Measured {
        self.report.reranked.as_ref().unwrap_or(&self.report.hybrid)
    }

    fn line(&self, width: usize, has_costs: bool, has_spans: bool) -> String {
        let Measured {
            mean,
            span_recall,
            context_recall,
            p50_ms,
            ..
        } = self.searched();
        let or_blank = |value: Option<String>| value.unwrap_or_default();
        let usd = self.estimated_cost_usd.map(|usd| format!("{usd:.4}"));
        let usd = if has_costs {
            format!("{:>10}", or_blank(usd))
        } else {
            String::new()
        };
        let share = |share: &Option<f64>| or_blank(share.map(|share| format!("{share:.3}")));
        let spans = match has_spans {
            true => format!("{:>7}{:>9}", share(span_recall), share(context_recall)),
            false => String::new(),
        };
        let [low, high] = self.ndcg_interval;
        let p = or_blank(self.comparison.as_ref().map(|c| format!("{:.4}", c.p)));
        format!(
            "{:width$}  {:>8}{:>11}{usd}{:>7.3}{:>16}{p:>8}{:>8.3}{spans}{p50_ms:>9.1}",
            self.settings,
            self.chunks,
            self.tokens,
            mean.ndcg,
            format!("{low:.3} to {high:.3}"),
            mean.recall,
        )
    }
}
