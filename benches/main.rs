//! The benches. Each compares ELF with the least that does the same, in turns, and says whether a
//! target is met. `make bench` runs all, `make bench NAME=worker` one, and `--quick` proves in a
//! minute that they run.
//!
//! `DATABASE_URL` names the Postgres server. Qdrant is the one at `QDRANT_URL`, else the `qdrant`
//! program on the PATH. Reports are written to `target/bench/`.

#![allow(
    clippy::large_futures,
    reason = "a bench polls them on the main thread"
)]

use std::path::{Path, PathBuf};

use tokio::signal::unix::{SignalKind, signal};

mod backlog;
mod bare;
mod chunker;
mod chunks;
mod claim;
mod copy;
mod corpus;
mod daemon;
mod drain;
mod edits;
mod engine;
mod fresh;
mod idle;
#[cfg(feature = "local")]
mod local;
mod plot;
mod process;
mod provider;
mod proxy;
#[path = "../tests/support/qdrant_server.rs"]
mod qdrant_server;
mod rebuild;
#[cfg(feature = "local")]
mod recall;
mod report;
mod rounds;
mod scale;
mod search;
mod sources;
mod stand_in;
mod stock;
mod worker;

type Error = Box<dyn std::error::Error + Send + Sync>;
type Result<T> = std::result::Result<T, Error>;

/// What the command line asks for.
#[derive(Clone, Copy)]
struct Options {
    /// Small sizes and one round.
    quick: bool,
}

impl Options {
    /// The size in full, or the one that `--quick` takes.
    fn size(self, full: usize, quick: usize) -> usize {
        if self.quick { quick } else { full }
    }
}

const NAMES: &[&str] = &[
    "chunker",
    "edits",
    #[cfg(feature = "local")]
    "local",
    "provider",
    "claim",
    "sources",
    "worker",
    "backlog",
    "fresh",
    "rebuild",
    "search",
    "idle",
    "scale",
    "chunks",
];

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Runtime::new()?;
    match arguments.first().map(String::as_str) {
        Some(stand_in::ROLE) => return runtime.block_on(stand_in::serve(&arguments[1..])),
        Some(chunker::ROLE) => return chunker::chunk(&arguments[1..]),
        Some(provider::ROLE) => return runtime.block_on(provider::serve(&arguments[1..])),
        Some(proxy::ROLE) => return proxy::serve(&arguments[1..]),
        _ => {}
    }
    let options = Options {
        quick: arguments.iter().any(|argument| argument == "--quick"),
    };
    // cargo adds `--bench`.
    let mut names: Vec<&str> = arguments
        .iter()
        .map(String::as_str)
        .filter(|argument| !argument.starts_with("--"))
        .collect();
    if let Some(unknown) = names.iter().find(|name| !NAMES.contains(name)) {
        return Err(format!(
            "there is no bench {unknown:?}; there are {}",
            NAMES.join(", ")
        )
        .into());
    }
    if names.is_empty() {
        names = NAMES.into();
    }
    for name in names {
        // A signal ends the bench by dropping it, and with it the processes that it started.
        runtime.block_on(async {
            tokio::select! {
                ended = run(name, options) => ended,
                stopped = signalled() => stopped,
            }
        })?;
    }
    Ok(())
}

async fn signalled() -> Result<()> {
    let mut terminated = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = terminated.recv() => {}
        interrupted = tokio::signal::ctrl_c() => interrupted?,
    }
    Err("stopped by a signal; a database elf_bench_… may be left behind".into())
}

async fn run(name: &str, options: Options) -> Result<()> {
    match name {
        "backlog" => backlog::run(options).await,
        "chunker" => chunker::run(options).await,
        "chunks" => chunks::run(options).await,
        "claim" => claim::run(options).await,
        "edits" => edits::run(options),
        "idle" => idle::run(options).await,
        #[cfg(feature = "local")]
        "local" => local::run(options).await,
        "provider" => provider::run(options).await,
        "scale" => scale::run(options).await,
        "sources" => sources::run(options).await,
        "search" => search::run(options).await,
        "fresh" => fresh::run(options).await,
        "rebuild" => rebuild::run(options).await,
        "worker" => worker::run(options).await,
        _ => unreachable!("main checked the names"),
    }
}

/// The folder of the demo's model.
fn model() -> Result<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let model = std::env::var_os("ELF_TEST_MODEL")
        .map_or_else(|| root.join(".elf/models/all-MiniLM-L6-v2"), PathBuf::from);
    std::fs::canonicalize(&model).map_err(|error| {
        format!(
            "no model {}: {error}; `make setup` fetches it",
            model.display()
        )
        .into()
    })
}

/// The `tokenizer.json` of this name: `minilm`, or one of `scripts/bench_data.py`.
fn tokenizer(name: &str) -> Result<PathBuf> {
    if name == "minilm" {
        return Ok(model()?.join("tokenizer.json"));
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    Ok(root.join(format!(".elf/bench/tokenizers/{name}.json")))
}
