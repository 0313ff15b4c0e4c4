//! `elf demo`: the main job on real notes, told as it happens.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use tokio_util::sync::CancellationToken;
use unicode_segmentation::UnicodeSegmentation;

use super::output::{excerpt, print};
use super::progress::Progress;
use super::{import, parts, search};
use crate::config::Config;
use crate::index::Filter;
use crate::search::Searcher;
use crate::telemetry;
use crate::worker::{self, Report, Tools, Worker};

/// The demo's own database on the server it is given.
const DATABASE: &str = "elf_demo";

/// What the demo looks for, and why it is interesting.
const SEARCHES: &[(&str, &str)] = &[
    ("by meaning; no note has the word", "insomnia"),
    ("by meaning; no note says vegetarian", "vegetarian supper"),
    ("by meaning", "database server ran out of storage"),
    ("by exact word", "Quillfeather"),
    ("by exact word", "ERR-4417"),
];

/// Arguments of `elf demo`.
#[derive(clap::Args)]
pub struct Args {
    /// A Postgres server with pgvector, as a user who may create databases; the
    /// demo drops and makes the database elf_demo there
    #[arg(long, env = "DATABASE_URL")]
    database_url: String,
    /// A sentence-transformers folder or Hugging Face repository
    #[arg(
        long,
        env = "ELF_DEMO_MODEL",
        default_value = "sentence-transformers/all-MiniLM-L6-v2"
    )]
    model: String,
    /// Where the embedded vector engine keeps its files; emptied first
    #[arg(long, env = "ELF_DEMO_DIR", default_value = ".elf/demo")]
    dir: PathBuf,
    /// The notes
    #[arg(long, default_value = "examples/notes")]
    notes: PathBuf,
}

/// Imports, indexes, searches, edits and deletes.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let config = configure(&args).await?;
    telemetry::init_logging(&config.service);
    telemetry::init_metrics();
    let store = parts::store(&config).await?;
    store.migrate().await?;

    let began = Instant::now();
    let notes = import::import_folder(&store, &args.notes).await?;
    say("Import")?;
    print(&format!(
        "{notes} notes from {} in {:.2} s, each with its outbox row in the same transaction",
        args.notes.display(),
        began.elapsed().as_secs_f64()
    ))?;

    say("Index")?;
    let tools = parts::tools(&config).await?;
    worker::prepare(&tools.store, &tools.version).await?;
    worker::check(&tools).await?;
    print(&format!(
        "embedding version {}, index {}",
        tools.version.name,
        tools.index.describe()
    ))?;
    let searcher = parts::searcher(&tools, &config);
    let index = tools.index.clone();
    let collection = tools.alias.clone();
    print("cutting, embedding and writing them; a small model on a few cores takes half a minute")?;
    let report = drain(&tools, &config, notes).await?;
    print(&counts(&report))?;
    let points = index.count(&collection, &Filter::default()).await?;
    print(&format!("{points} points in the index"))?;

    for (how, query) in SEARCHES {
        say(&format!("Search {how}: {query:?}"))?;
        show(&searcher, query).await?;
    }
    edit(&tools, &config, &searcher).await?;
    delete(&tools, &config, &searcher).await?;
    say("Done")?;
    print("Everything above ran against a real Postgres, a real vector engine and a real model.")
}

/// Makes the database and the folder anew, and the ten lines that are all the
/// configuration this takes.
async fn configure(args: &Args) -> anyhow::Result<Config> {
    let mut admin = PgConnection::connect(&args.database_url)
        .await
        .context("failed to connect to --database-url")?;
    admin
        .execute(AssertSqlSafe(format!(
            "drop database if exists {DATABASE} with (force)"
        )))
        .await?;
    admin
        .execute(AssertSqlSafe(format!("create database {DATABASE}")))
        .await?;
    admin.close().await?;
    remove_folder(&args.dir)?;

    let mut dsn = reqwest::Url::parse(&args.database_url).context("--database-url is no URL")?;
    dsn.set_path(DATABASE);
    let text = format!(
        "[storage.postgres]\ndsn = {:?}\n[storage.qdrant]\nurl = {:?}\n\
         [providers.embedding]\nprovider = \"local\"\nmodel = {:?}\n\
         [chunking]\nmax_tokens = 256\noverlap_tokens = 32\n\
         [service]\nlog_level = \"error\"\n",
        dsn.as_str(),
        format!("embedded:{}", args.dir.display()),
        args.model,
    );
    Ok(Config::parse(&text, "the demo's configuration", &|name| {
        std::env::var(name).ok()
    })?)
}

/// Only a folder that the vector engine made, or none.
fn remove_folder(dir: &Path) -> anyhow::Result<()> {
    if !dir.exists() {
        return Ok(());
    }
    let ours = dir.join("lock").exists() || dir.read_dir()?.next().is_none();
    anyhow::ensure!(
        ours,
        "{} is not empty and not the demo's: give another --dir",
        dir.display()
    );
    std::fs::remove_dir_all(dir).with_context(|| format!("failed to empty {}", dir.display()))
}

async fn drain(tools: &Tools, config: &Config, notes: u64) -> anyhow::Result<Report> {
    let worker = Arc::new(Worker::new(tools.clone(), &config.worker, &config.outbox));
    let progress = Progress::start("indexing", {
        let worker = worker.clone();
        move || (worker.totals().notes, notes)
    });
    let drained = worker.drain(CancellationToken::new()).await;
    progress.finish();
    drained?;
    Ok(worker.totals())
}

fn counts(report: &Report) -> String {
    format!(
        "notes {}, chunks {}, embedded {}, reused {}, points written {}, in {:.2} s",
        report.notes, report.chunks, report.embedded, report.reused, report.points, report.seconds
    )
}

async fn show(searcher: &Searcher, query: &str) -> anyhow::Result<()> {
    let began = Instant::now();
    let items = searcher.search(query, Filter::default(), 3).await?;
    print(&search::lines(&items))?;
    print(&format!(
        "    ({:.0} ms)",
        began.elapsed().as_secs_f64() * 1000.0
    ))
}

/// Replaces one sentence in the second half of the longest note.
async fn edit(tools: &Tools, config: &Config, searcher: &Searcher) -> anyhow::Result<()> {
    let (key, text): (String, String) = sqlx::query_as(
        "select key, text from memory_notes order by octet_length(text) desc limit 1",
    )
    .fetch_one(tools.store.pool())
    .await?;
    let (old, edited) =
        replace_sentence(&text, "The spare zymurgometer lives in the blue cabinet. ")
            .context("the longest note has no sentence to replace")?;
    say(&format!("Edit one sentence of {key}"))?;
    print(&format!("was: {}", excerpt(old, 100)))?;
    sqlx::query("update memory_notes set text = $2, updated_at = now() where key = $1")
        .bind(&key)
        .bind(&edited)
        .execute(tools.store.pool())
        .await?;
    print(&counts(&drain(tools, config, 1).await?))?;
    say("Search for what was just written: \"where is the zymurgometer\"")?;
    show(searcher, "where is the zymurgometer").await
}

/// The sentence that is replaced, and the text with the other one in its place.
fn replace_sentence<'a>(text: &'a str, new: &str) -> Option<(&'a str, String)> {
    let (start, old) = text
        .split_sentence_bound_indices()
        .filter(|(start, sentence)| *start > text.len() / 2 && sentence.len() > 60)
        // Prose, not a line of a table or a command.
        .find(|(_, sentence)| {
            sentence.starts_with(char::is_uppercase) && !sentence.contains('\n')
        })?;
    let end = start + old.len();
    Some((old, format!("{}{new}{}", &text[..start], &text[end..])))
}

async fn delete(tools: &Tools, config: &Config, searcher: &Searcher) -> anyhow::Result<()> {
    let query = SEARCHES[SEARCHES.len() - 1].1;
    let items = searcher.search(query, Filter::default(), 1).await?;
    let Some(best) = items.first() else {
        return Ok(());
    };
    say(&format!(
        "Delete {}",
        best.key.as_deref().unwrap_or("the best hit")
    ))?;
    sqlx::query("delete from memory_notes where note_id = $1")
        .bind(best.note_id)
        .execute(tools.store.pool())
        .await?;
    print(&counts(&drain(tools, config, 1).await?))?;
    let left = tools
        .index
        .count(
            &tools.alias,
            &Filter {
                note_ids: Some(vec![best.note_id]),
                ..Filter::default()
            },
        )
        .await?;
    print(&format!(
        "{left} of its points are left; the same search now gives:"
    ))?;
    show(searcher, query).await
}

fn say(heading: &str) -> anyhow::Result<()> {
    print(&format!("\n== {heading}"))
}
