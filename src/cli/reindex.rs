//! `elf reindex`

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::canary;
use super::gate::Gate;
use super::output::Output;
use super::progress::Progress;
use super::rebuild::notice;
use super::signals::{in_flight, stop_on_signals};
use super::value;
use super::wiring::{self, EmbeddingSetup};
use crate::config::Config;
use crate::embed::EmbedError;
use crate::reindex::{self, Dropped, Estimate, Report, RolledBack, Then};
use crate::serving;
use crate::store::{CollectionRow, Lifecycle};
use crate::telemetry;
use crate::verify;
use crate::worker::{Pipeline, Worker};

/// Arguments of `elf reindex`.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    /// Count the chunks, the tokens to embed and their cost; write nothing
    #[arg(long, conflicts_with = "swap")]
    pub(super) dry_run: bool,
    /// Swap to the new version when it is complete and verify finds no drift
    #[arg(long)]
    swap: bool,
    /// Swap only if `elf eval` of this folder finds no less with the new version
    #[arg(long, value_name = "FOLDER", requires_all = ["swap", "against"])]
    gate: Option<PathBuf>,
    /// What it found with the old version: the output of `elf eval FOLDER --json`
    #[arg(long, value_name = "FILE", requires = "gate")]
    against: Option<PathBuf>,
    /// List every difference from Postgres on stderr
    #[arg(long)]
    verbose: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Serve the previous version again
    ///
    /// It is served at once, from its old collection. Its notes are enqueued: run a worker with its configuration.
    Rollback,
    /// Let the version that is built answer a share of the searches; without a share, compare what they find
    ///
    /// Processes whose `quality.canary.config` is this configuration take part. The share ends by itself if relevance,
    /// errors or times get worse.
    Canary {
        /// Such as 10%; 0% ends it
        #[arg(value_name = "SHARE", value_parser = value::percent)]
        share: Option<f64>,
    },
    /// Delete versions that are not served, from Postgres and from the index
    Drop {
        /// Only this version
        #[arg(long, value_name = "NAME")]
        version: Option<String>,
    },
}

/// A report and what its tokens cost.
#[derive(Serialize)]
struct Priced<T> {
    #[serde(flatten)]
    report: T,
    /// US dollars; null without `providers.embedding.usd_per_million_tokens`.
    estimated_cost_usd: Option<f64>,
}

impl<T> Priced<T> {
    fn new(config: &Config, report: T, tokens: u64) -> Self {
        let price = config.providers.embedding.usd_per_million_tokens;
        Self {
            report,
            estimated_cost_usd: price.map(|usd| usd * tokens as f64 / 1e6),
        }
    }

    fn cost(&self) -> String {
        match self.estimated_cost_usd {
            Some(usd) => format!(", about {usd:.4} USD"),
            None => String::new(),
        }
    }
}

/// Builds the embedding version that the configuration asks for, swaps to it, or rolls back.
pub async fn run(config: &Config, args: Args, out: Output) -> anyhow::Result<()> {
    match args.command {
        Some(Command::Rollback) => {
            let done = reindex::rollback(&wiring::serving(config).await?).await?;
            out.report(&done, rolled_back)
        }
        Some(Command::Drop { version }) => {
            let pipeline = wiring::serving(config).await?;
            let dropped = reindex::drop(&pipeline, version.as_deref()).await?;
            out.report(&serde_json::json!({ "dropped": &dropped }), |_| {
                drops(&dropped)
            })
        }
        Some(Command::Canary { share }) => canary::run(config, share, out).await,
        None if args.dry_run => dry_run(config, out).await,
        None => Box::pin(build(config, args, out)).await,
    }
}

async fn dry_run(config: &Config, out: Output) -> anyhow::Result<()> {
    let EmbeddingSetup {
        store,
        chunker,
        version,
        ..
    } = wiring::setup(config).await?;
    let counts = Arc::new(serving::Progress::default());
    let progress = Progress::start("counting", {
        let counts = counts.clone();
        move || (counts.done(), counts.total())
    });
    let estimate = reindex::estimate(&store, &chunker, &version, &counts).await;
    progress.finish();
    let estimate = estimate?;
    let served = store.active_version().await?;
    let next = match served.is_some_and(|served| served.name == version.name) {
        true => "it is served: there is nothing to build",
        false => "nothing was written; `elf reindex` builds it",
    };
    let tokens = estimate.tokens;
    out.report(&Priced::new(config, estimate, tokens), |priced| {
        let Estimate {
            version,
            notes,
            chunks,
            known,
            to_embed,
            tokens,
        } = &priced.report;
        format!(
            "{version}: {notes} notes, {chunks} chunks, {known} of them known\n\
             to embed: {to_embed} texts of {tokens} tokens at most{}\n\
             {next}",
            priced.cost()
        )
    })
}

async fn build(config: &Config, args: Args, out: Output) -> anyhow::Result<()> {
    telemetry::init_metrics();
    let gate = match (&args.gate, &args.against) {
        (Some(folder), Some(file)) => Some(Gate::read(folder, file)?),
        _ => None,
    };
    let pipeline = wiring::pipeline(config).await?;
    if let Err(error @ EmbedError::Config { .. }) = pipeline.provider.check().await {
        return Err(error).context("failed to start providers.embedding");
    }
    let stop = stop_on_signals(&format!("{}; run it again to resume", in_flight(config)))?;
    let worker = Worker::new(pipeline.clone(), &config.worker, &config.outbox);
    let counts = Arc::new(serving::Progress::default());
    let options = verify::Options {
        repair: false,
        notice: notice(args.verbose),
        progress: counts.clone(),
        ..verify::Options::repairing()
    };
    let progress = Progress::start("reindexing", move || (counts.done(), counts.total()));
    let then = if args.swap { Then::Swap } else { Then::Wait };
    let done = async {
        if let Some(gate) = gate {
            let waiting = Then::Wait;
            let done = reindex::run(&pipeline, &worker, waiting, &options, stop.clone()).await?;
            if done.state == Lifecycle::Active {
                return Ok(done);
            }
            pass(&gate, &pipeline, config, stop.clone()).await?;
        }
        anyhow::Ok(reindex::run(&pipeline, &worker, then, &options, stop).await?)
    };
    let done = Box::pin(done).await;
    progress.finish();
    let done = done?;
    let tokens = done.work.tokens;
    out.report(&Priced::new(config, done, tokens), built)
}

/// Measures the new version in the collection that it has.
async fn pass(
    gate: &Gate,
    pipeline: &Pipeline,
    config: &Config,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let collections = pipeline.serving.store.registered_collections().await?;
    let of_version = |c: &&CollectionRow| c.version == pipeline.version.name && c.is_active();
    let collection = collections.iter().find(of_version);
    let collection = collection.context("the new version has no collection yet")?;
    let checking = gate.check(pipeline, config, collection.name.clone(), stop);
    let comparison = checking.await?;
    tracing::info!(comparison = comparison.line(), "gate passed");
    Ok(())
}

fn built(priced: &Priced<Report>) -> String {
    let Report {
        version,
        state,
        work,
        dead_letters,
        verified,
    } = &priced.report;
    if *state == Lifecycle::Active && verified.is_none() {
        return format!(
            "{version} is what this configuration asks for, and it is served: nothing to do"
        );
    }
    let done = format!(
        "{version}: {} notes, {} chunks ({} embedded, {} reused), {} tokens{}, {:.1} s",
        work.notes,
        work.chunks,
        work.embedded,
        work.reused,
        work.tokens,
        priced.cost(),
        work.seconds
    );
    let next = match (verified, dead_letters) {
        (Some(report), _) => format!(
            "{} points equal Postgres; it is served now. Start workers with this configuration; \
             `elf reindex rollback` rolls back, `elf reindex drop` deletes the old version",
            report.points
        ),
        (None, 0) => "it is complete, and the old version is still served. A worker with this \
                      configuration keeps it in step; `elf reindex --swap` serves it"
            .to_owned(),
        (None, dead) => format!(
            "{dead} notes are dead-lettered: see `elf dead list`. The old version is still served; \
             retry or purge them, then `elf reindex --swap` serves the new one"
        ),
    };
    format!("{done}\n{next}")
}

fn rolled_back(done: &RolledBack) -> String {
    let settings: Vec<String> = done
        .settings
        .iter()
        .map(|change| format!("\n  {} = {}", change.key, change.to))
        .collect();
    format!(
        "{} is served again; {} notes are due for it. A worker with its settings brings them up to \
         date:{}",
        done.version,
        done.due,
        settings.concat()
    )
}

fn drops(dropped: &[Dropped]) -> String {
    if dropped.is_empty() {
        return "nothing to drop: the served version is the only one".into();
    }
    let line = |d: &Dropped| {
        format!(
            "dropped {}: {} chunks, {}",
            d.version,
            d.chunks,
            match &d.collections[..] {
                [] => "no collection".to_owned(),
                names => names.join(", "),
            }
        )
    };
    dropped.iter().map(line).collect::<Vec<_>>().join("\n")
}
