//! `elf verify`

use std::sync::Arc;

use super::output::Output;
use super::progress::Progress;
use super::rebuild::notice;
use super::wiring;
use crate::config::Config;
use crate::serving;
use crate::verify::{self, Report};

/// Arguments of `elf verify`.
#[derive(clap::Args)]
pub struct Args {
    /// Repair the index from Postgres, without an embedding call: write missing and stale
    /// points, delete orphaned ones, put inconsistent notes into the outbox
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

/// The verify found drift that it did not repair.
#[derive(Debug, thiserror::Error)]
#[error("the index differs from Postgres: run `elf verify --repair`")]
pub struct DriftFound;

/// Compares the index with Postgres, and Postgres with itself.
pub async fn run(config: &Config, args: Args, out: Output) -> anyhow::Result<()> {
    let serving = wiring::serving(config).await?;
    if args.repair {
        serving::adopt_copy(&serving).await?;
    }
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
    let report = verified?;
    out.report(&report, lines)?;
    if report.unrepaired() > 0 {
        return Err(DriftFound.into());
    }
    Ok(())
}

pub(super) fn lines(report: &Report) -> String {
    format!(
        "{} notes, {} chunks, {} points: {} missing, {} stale, {} orphaned, {} notes inconsistent; \
         {} repaired{}{}",
        report.notes,
        report.chunks,
        report.points,
        report.missing,
        report.stale,
        report.orphaned,
        report.inconsistent,
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
