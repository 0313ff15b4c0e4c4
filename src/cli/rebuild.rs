//! `elf rebuild`

use std::sync::Arc;

use serde::Serialize;

use super::output::{Output, complain};
use super::progress::Progress;
use super::signals::stop_on_signals;
use super::wiring;
use crate::config::Config;
use crate::rebuild::{self, Report};
use crate::registry::{self, Notice};

/// Arguments of `elf rebuild`.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    /// Keep the old collection under its name; it is not written any more
    #[arg(long)]
    keep_old: bool,
    /// Where the alias points at nothing, point it at the new collection last, when
    /// it is complete, instead of first
    #[arg(long)]
    swap_last: bool,
    /// Begin anew instead of going on where an earlier run ended
    #[arg(long)]
    restart: bool,
    /// Say which chunks have no vector
    #[arg(long)]
    verbose: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Drop what an unfinished rebuild has left, and old collections that were kept
    Drop,
}

#[derive(Serialize)]
struct Dropped {
    dropped: Vec<String>,
}

/// Brings the index back from Postgres, without an embedding call.
pub async fn run(config: &Config, args: Args, out: Output) -> anyhow::Result<()> {
    let context = wiring::index_context(config).await?;
    if let Some(Command::Drop) = args.command {
        let dropped = rebuild::drop_leftovers(&context).await?;
        return out.report(&Dropped { dropped }, |report| match &report.dropped[..] {
            [] => "nothing to drop".into(),
            names => format!("dropped {}", names.join(", ")),
        });
    }
    let options = rebuild::Options {
        swap_last: args.swap_last,
        keep_old: args.keep_old,
        restart: args.restart,
        notice: notice(args.verbose),
    };
    let counts = Arc::new(registry::Progress::default());
    let stop = stop_on_signals("what is done is kept")?;
    let progress = Progress::start("rebuilding", {
        let counts = counts.clone();
        move || (counts.done(), counts.total())
    });
    let rebuilt = rebuild::run(&context, &options, counts, stop).await;
    progress.finish();
    out.report(&rebuilt?, lines)
}

/// Prints every finding to stderr if it is asked for.
pub(super) fn notice(verbose: bool) -> Notice {
    Arc::new(move |finding| {
        if verbose {
            complain(&finding.to_string());
        }
    })
}

pub(super) fn lines(report: &Report) -> String {
    let missing = match report.missing_vectors {
        0 => String::new(),
        missing => format!(
            "\n{missing} chunks have no vector; their notes are in the outbox, and a worker embeds them \
             (--verbose lists them)"
        ),
    };
    let refused = match report.refused_points {
        0 => String::new(),
        refused => format!(
            "\n{refused} points are refused by the engine; their notes are in the outbox, see `elf dead \
             list` (--verbose lists them)"
        ),
    };
    format!(
        "{}: {} points in {:.1} s, {:.0} points/s, embedding calls: {}{missing}{refused}",
        report.collection,
        report.points,
        report.seconds,
        report.points_per_sec,
        report.embedding_calls
    )
}
