//! `elf rebuild`

use std::sync::Arc;

use serde::Serialize;

use super::output::{Output, print_error};
use super::progress::Progress;
use super::signals::stop_on_signals;
use super::wiring;
use crate::config::Config;
use crate::rebuild::{self, Report};
use crate::serving::{self, Notice};

/// Arguments of `elf rebuild`.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    /// Keep the old collection, which workers write no more, until the next rebuild without this option or
    /// `elf rebuild drop`
    #[arg(long)]
    keep_old: bool,
    /// If no collection is served, set the alias when the new collection is complete, instead of at the start
    #[arg(long)]
    swap_last: bool,
    /// Take the alias over from a collection that this database does not list: after a restore of Postgres its own
    /// later one, but it may also be that of another database
    #[arg(long)]
    take_alias: bool,
    /// Start a new collection instead of resuming an earlier rebuild
    #[arg(long)]
    restart: bool,
    /// List chunks without a vector and refused points on stderr
    #[arg(long)]
    verbose: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Drop the collection of an unfinished rebuild, and old collections that were kept
    Drop,
}

#[derive(Serialize)]
struct Dropped {
    dropped: Vec<String>,
}

pub async fn run(config: &Config, args: Args, out: Output) -> anyhow::Result<()> {
    let serving = wiring::serving(config).await?;
    if let Some(Command::Drop) = args.command {
        let dropped = rebuild::drop_leftovers(&serving).await?;
        return out.report(&Dropped { dropped }, |report| match &report.dropped[..] {
            [] => "nothing to drop".into(),
            names => format!("dropped {}", names.join(", ")),
        });
    }
    let options = rebuild::Options {
        swap_last: args.swap_last,
        take_alias: args.take_alias,
        keep_old: args.keep_old,
        restart: args.restart,
        notice: notice(args.verbose),
    };
    let counts = Arc::new(serving::Progress::default());
    let stop = stop_on_signals("writes in flight end; run it again to resume")?;
    let progress = Progress::start("rebuilding", {
        let counts = counts.clone();
        move || (counts.done(), counts.total())
    });
    let rebuilt = rebuild::run(&serving, &options, counts, stop).await;
    progress.finish();
    out.report(&rebuilt?, lines)
}

/// Prints every finding to stderr with `--verbose`.
pub(super) fn notice(verbose: bool) -> Notice {
    Arc::new(move |finding| {
        if verbose {
            print_error(&finding.to_string());
        }
    })
}

pub(super) fn lines(report: &Report) -> String {
    let missing = match report.missing_vectors {
        0 => String::new(),
        missing => format!(
            "\n{missing} chunks have no vector; their notes are in the outbox, and a worker embeds \
             them (--verbose lists them)"
        ),
    };
    let refused = match report.refused_points {
        0 => String::new(),
        refused => format!(
            "\nthe vector engine refused {refused} points; their notes are in the outbox, see \
             `elf dead list` (--verbose lists them)"
        ),
    };
    format!(
        "{}: {} points in {:.1} s, graphs and swap included (copied at {:.0} points/s), \
         embedding calls: {}{missing}{refused}",
        report.collection,
        report.points,
        report.seconds,
        report.points_per_sec,
        report.embedding_calls
    )
}
