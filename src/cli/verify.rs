//! `elf verify`

use std::sync::Arc;

use serde::Serialize;

use super::output::{Output, counted};
use super::progress::Progress;
use super::rebuild::notice;
use super::source::left_out;
use super::wiring;
use crate::config::Config;
use crate::serving;
use crate::sources::{self, Compared, State};
use crate::store::Store;
use crate::verify::{self, Report};

/// Arguments of `elf verify`.
#[derive(clap::Args)]
pub struct Args {
    /// Repair the index from Postgres, without an embedding call: write missing and stale
    /// points, delete orphaned ones, put inconsistent notes into the outbox; and make the notes of sources equal to their
    /// rows
    #[arg(long)]
    pub(super) repair: bool,
    /// Compare the dense vectors too
    #[arg(long)]
    deep: bool,
    /// Check only this share of the points and of the notes, in percent: above 0, up to 100
    #[arg(long, value_name = "P", default_value_t = 100.0, value_parser = percent)]
    sample: f64,
    /// List every difference on stderr
    #[arg(long)]
    verbose: bool,
}

/// The verify found drift that it did not repair: in the index, or between notes and the rows of their sources.
#[derive(Debug, thiserror::Error)]
pub enum DriftFound {
    #[error("the index differs from Postgres: run `elf verify --repair`")]
    Index,
    #[error("notes differ from the rows of their source: run `elf source sync`")]
    Sources,
}

pub async fn run(config: &Config, args: Args, out: Output) -> anyhow::Result<()> {
    let serving = wiring::serving(config).await?;
    if args.repair {
        serving::adopt_copy(&serving).await?;
    }
    // First: what it repairs is then no drift of the index, but due.
    let sources = compare_sources(&serving.store, config, &args).await?;
    let counts = Arc::new(serving::Progress::default());
    if let Some(version) = serving.store.active_version().await? {
        let chunks = serving.store.count_points(&version.name).await?;
        counts.set(0, (chunks as f64 * args.sample / 100.0) as u64);
    }
    let progress = Progress::start("verifying", {
        let counts = counts.clone();
        move || (counts.done(), counts.total())
    });
    let options = verify::Options {
        deep: args.deep,
        sample: args.sample / 100.0,
        repair: args.repair,
        from: Arc::default(),
        rest: 0,
        notice: notice(args.verbose),
        progress: counts,
    };
    let verified = verify::run(&serving, &options).await;
    progress.finish();
    let report = Verified {
        sources,
        index: verified?,
    };
    out.report(&report, all_lines)?;
    if report.index.unrepaired() > 0 {
        return Err(DriftFound::Index.into());
    }
    let has_drift =
        |source: &ComparedSource| !source.is_repaired && source.compared.drift.all() > 0;
    if report.sources.iter().any(has_drift) {
        return Err(DriftFound::Sources.into());
    }
    Ok(())
}

/// The notes of a source, compared with its rows.
#[derive(Serialize)]
struct ComparedSource {
    name: String,
    #[serde(flatten)]
    compared: Compared,
    /// Rows that are no notes, for a reason, or whose notes no longer follow them.
    left_out: i64,
    /// Whether the notes were made equal.
    #[serde(skip)]
    is_repaired: bool,
}

#[derive(Serialize)]
struct Verified {
    #[serde(flatten)]
    index: Report,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    sources: Vec<ComparedSource>,
}

/// Compares the notes of the sources with their rows. A sample leaves them out.
async fn compare_sources(
    store: &Store,
    config: &Config,
    args: &Args,
) -> anyhow::Result<Vec<ComparedSource>> {
    let mut all = Vec::new();
    if args.sample < 100.0 {
        return Ok(all);
    }
    let listed = sources::list_unlocked(store, &config.sources).await?;
    for source in listed {
        if let Some(problem) = &source.problem {
            tracing::warn!("{problem}");
        }
        if source.state == State::Applied {
            let (compared, is_repaired) = match args.repair {
                false => (
                    sources::compare(store, &source, false, |_| {}).await?,
                    false,
                ),
                true => match sources::repair(store, &source, |_| {}).await? {
                    Ok(compared) => (compared, true),
                    Err(refused) => {
                        tracing::warn!("{refused}");
                        (refused.looked, false)
                    }
                },
            };
            let counts = store.source_counts().await?;
            all.push(ComparedSource {
                left_out: counts.get(&source.name).map_or(0, |counts| counts.left_out),
                name: source.name,
                compared,
                is_repaired,
            });
        }
    }
    Ok(all)
}

fn all_lines(report: &Verified) -> String {
    let source = |source: &ComparedSource| {
        let Compared { rows, drift } = source.compared;
        let repaired = match drift.all() {
            0 => String::new(),
            n if source.is_repaired => format!("; {n} repaired"),
            _ => String::new(),
        };
        format!(
            "\n{}: {}; notes: {} missing, {} stale, {} orphaned{repaired}{}",
            source.name,
            counted(rows, "row", "rows"),
            drift.missing,
            drift.stale,
            drift.orphaned,
            left_out(source.left_out, &source.name)
        )
    };
    let sources: String = report.sources.iter().map(source).collect();
    format!("{}{sources}", lines(&report.index))
}

pub(super) fn lines(report: &Report) -> String {
    format!(
        "{}, {}, {}: {} missing, {} stale, {} orphaned, {} inconsistent; {} repaired{}{}",
        counted(report.notes, "note", "notes"),
        counted(report.chunks, "chunk", "chunks"),
        counted(report.points, "point", "points"),
        report.missing,
        report.stale,
        report.orphaned,
        counted(report.inconsistent, "note", "notes"),
        report.repaired,
        match report.repaired > 0 && report.inconsistent > 0 {
            true => "; the inconsistent notes are in the outbox, and a worker indexes them again",
            false => "",
        },
        match report.refused {
            0 => String::new(),
            refused => format!(
                "; the vector engine refused {refused} points: their notes are in the outbox, see \
                 `elf dead list` (--verbose lists them)"
            ),
        }
    )
}

fn percent(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent <= 100.0 => Ok(percent),
        _ => Err("give percent, above 0 and up to 100".into()),
    }
}
