//! The command line: one file or folder per command. Beside them `wiring` builds what commands need,
//! `value`, `output`, `progress`, `signals` and `exit` are what they share, and `start`, `admin_port` and
//! `systemd` surround a worker.

mod admin_port;
mod canary;
mod chunk;
mod completions;
mod config;
mod dead;
mod demo;
mod enqueue;
mod eval;
mod exit;
mod gate;
mod import;
mod key;
mod man;
mod mcp;
mod migrate;
mod output;
mod progress;
mod rebuild;
mod reindex;
mod search;
mod serve;
mod signals;
mod source;
mod start;
mod status;
mod systemd;
mod value;
mod verify;
pub mod wiring;
mod worker;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::config::{Config, ConfigError, path_or_default};
use crate::telemetry::{AUDIT, Reader};
use output::{Output, is_watched};

/// Keeps a Qdrant index in step with notes that an application writes to Postgres.
#[derive(Parser)]
#[command(
    version,
    arg_required_else_help = true,
    after_help = "Exit codes: 0 done, 1 failed or stopped before the end, 2 wrong usage, 3 drift found by verify, 78 configuration."
)]
pub struct Args {
    /// The configuration file [default: $ELF_CONFIG, else ./elf.toml]
    #[arg(short, long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print the report as one JSON value on stdout
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Bring the database schema up to date
    ///
    /// Run it after each upgrade, after a restore of Postgres, and after a change of storage.postgres.vector_type. Several
    /// may run at once.
    Migrate,
    /// Index changed notes until stopped
    ///
    /// A worker also serves the admin page, metrics and health checks on service.admin_bind, and the HTTP API if
    /// service.http_bind is set. After SIGTERM work in flight has worker.grace_secs to end; then the worker releases the
    /// leases of the rest.
    Worker(worker::Args),
    /// Rebuild the index from Postgres, without an embedding call
    ///
    /// Fills a new collection, points the alias at it and drops the old one. Searches and workers need not stop. Run it
    /// again if it was interrupted: it resumes.
    Rebuild(rebuild::Args),
    /// Build a new embedding version beside the served one, swap to it, or roll back
    ///
    /// The configuration says which version. Run it with a copy: the workers of the served version still use the old
    /// one. Run it again if it was interrupted: it resumes.
    Reindex(reindex::Args),
    /// Compare the index with Postgres, and Postgres with itself
    ///
    /// Counts drift: missing (a chunk without a point), stale (a point with another revision, payload or version) and
    /// orphaned (a point without a chunk). Also inconsistent: a live note whose chunks, hash or vectors in Postgres do
    /// not follow from its text. Likewise the notes of each source with its rows. Workers need not stop.
    Verify(verify::Args),
    /// Show backlog, notes, chunks and collection
    Status,
    /// List, show, retry or purge dead-lettered notes
    #[command(subcommand)]
    Dead(dead::Command),
    /// Put notes into the outbox, so that a worker indexes them again
    ///
    /// Name at least one option; a note has to match all of them. The worker embeds only what changed.
    Enqueue(enqueue::Args),
    /// Write a folder of text files, JSONL or CSV to memory_notes
    ///
    /// A note is known by its key together with tenant, project, agent and scope, or by the note_id of its line. The
    /// key of a file is its path below the folder, or as you give it for a single file. A second import changes only
    /// what differs and is named by the file, the line or an option. A file that you delete stays a note, unless you
    /// --sync. What cannot be read or written is named, the rest is imported, and the exit code is 1. Files of other
    /// types, binary and hidden files and symbolic links are passed over.
    Import(import::Args),
    /// Make notes of the rows of the application's own tables
    ///
    /// elf.toml names the tables: [[sources]]. Triggers on them keep the notes equal to the rows, in the transactions of
    /// the application.
    #[command(subcommand)]
    Source(source::Command),
    /// Show how a text is split into chunks: byte offsets and tokens
    Chunk(chunk::Args),
    /// Check or show the configuration
    #[command(subcommand)]
    Config(config::Command),
    /// Search notes by meaning and by keyword
    Search(search::Args),
    /// Serve the HTTP API on service.http_bind until stopped
    ///
    /// Any number of processes may.
    Serve(serve::Args),
    /// Serve the HTTP API as tools for an agent, on stdin and stdout (Model Context Protocol)
    Mcp(mcp::Args),
    /// Make, list, rotate or revoke keys of the HTTP API
    #[command(subcommand)]
    Key(key::Command),
    /// Measure how well searches find known answers
    ///
    /// Writes documents to memory_notes, indexes them, searches for each query, and deletes the documents at the end.
    Eval(eval::Args),
    /// Import example notes, index, search, edit and delete them
    Demo(demo::Args),
    /// Print a completion script for a shell
    Completions(completions::Args),
    /// Write manual pages to a folder
    #[command(hide = true)]
    Man(man::Args),
}

impl Command {
    /// Whether the command changes what is stored or served.
    fn is_change(&self) -> bool {
        match self {
            Self::Migrate | Self::Rebuild(_) | Self::Enqueue(_) | Self::Eval(_) => true,
            Self::Import(args) => args.is_change(),
            Self::Key(command) => command.is_change(),
            Self::Source(command) => command.is_change(),
            Self::Reindex(args) => !args.dry_run,
            Self::Verify(args) => args.repair,
            Self::Dead(command) => {
                matches!(command, dead::Command::Retry(_) | dead::Command::Purge(_))
            }
            Self::Worker(_)
            | Self::Status
            | Self::Chunk(_)
            | Self::Config(_)
            | Self::Search(_)
            | Self::Serve(_)
            | Self::Mcp(_)
            | Self::Demo(_)
            | Self::Completions(_)
            | Self::Man(_) => false,
        }
    }
}

/// Writes an audit line before a command that changes something; the admin port writes one
/// for its own changes.
fn audit() {
    let user = ["SUDO_USER", "USER", "LOGNAME"]
        .into_iter()
        .find_map(|name| std::env::var(name).ok());
    let arguments = without_settings(std::env::args_os().skip(1));
    tracing::info!(target: AUDIT, user, ?arguments, "change requested on the command line");
}

/// The arguments without the settings of `--try`, which may hold a secret by mistake.
fn without_settings(arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut is_settings = false;
    let shown = arguments.map(|argument| {
        let begins = argument.as_encoded_bytes().starts_with(b"--try=");
        let hidden = std::mem::replace(&mut is_settings, argument == "--try");
        match (hidden, begins) {
            (true, _) => "…".into(),
            (false, true) => "--try=…".into(),
            (false, false) => argument,
        }
    });
    shown.collect()
}

/// Runs a command to its end.
pub fn run(args: Args) -> ExitCode {
    let runtime = tokio::runtime::Runtime::new().expect("the system has threads");
    match runtime.block_on(dispatch(args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::print_error(&format!("elf: {}", output::with_causes(&error)));
            ExitCode::from(exit::code(&error))
        }
    }
}

async fn dispatch(args: Args) -> anyhow::Result<()> {
    let out = Output { json: args.json };
    let path = path_or_default(args.config);
    // Held until the command ends: dropping it sends the last spans.
    let mut logging = None;
    let is_change = args.command.is_change();
    let goes_on = match &args.command {
        Command::Worker(worker) => !worker.is_once(),
        Command::Serve(_) | Command::Mcp(_) | Command::Demo(_) => true,
        _ => false,
    };
    let reader = match goes_on || !is_watched() {
        true => Reader::Log,
        false => Reader::Terminal,
    };
    let has_servers = !matches!(args.command, Command::Chunk(_));
    let mut load = || {
        let config = match has_servers {
            true => Config::load(&path)?,
            false => Config::load_without_secrets(&path)?,
        };
        logging = Some(crate::telemetry::init_logging(&config.service, reader));
        if is_change {
            audit();
        }
        Ok::<Config, ConfigError>(config)
    };
    match args.command {
        Command::Migrate => migrate::run(&load()?, out).await,
        Command::Worker(args) => Box::pin(worker::run(&load()?, args, out)).await,
        Command::Rebuild(args) => rebuild::run(&load()?, args, out).await,
        Command::Reindex(args) => Box::pin(reindex::run(&load()?, args, out)).await,
        Command::Verify(args) => verify::run(&load()?, args, out).await,
        Command::Status => status::run(&load()?, out).await,
        Command::Dead(command) => dead::run(&load()?, command, out).await,
        Command::Enqueue(args) => enqueue::run(&load()?, args, out).await,
        Command::Import(args) => import::run(&load()?, args, out).await,
        Command::Source(command) => {
            let config = load()?;
            source::run(&config, &path, command, out).await
        }
        Command::Chunk(args) => chunk::run(&load()?, args, out).await,
        Command::Config(command) => config::run(&path, command, out),
        Command::Search(args) => Box::pin(search::run(&load()?, args, out)).await,
        Command::Serve(args) => Box::pin(serve::run(&load()?, args)).await,
        Command::Mcp(args) => mcp::run(args).await,
        Command::Key(command) => key::run(&load()?, command, out).await,
        Command::Eval(args) => Box::pin(eval::run(&load()?, &path, args, out)).await,
        Command::Demo(args) => Box::pin(demo::run(args)).await,
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args),
    }
}
