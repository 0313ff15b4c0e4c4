//! `elf demo`: follows a table; imports, indexes, searches, deletes, rebuilds and reindexes real notes; searches them
//! over HTTP, and prints each step.

mod over_http;
mod sandbox;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use sqlx::Executor;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::admin_port::AdminPort;
use super::output::{print, print_lines};
use super::progress::Progress;
use super::signals::stop_on_signals;
use super::wiring::EmbeddingSetup;
use super::{import, search, source, wiring};
use crate::http::bounds::Bounds;
use crate::index::Filter;
use crate::rebuild;
use crate::reindex::{self, Then};
use crate::search::{Request, Searcher};
use crate::serving;
use crate::store::Store;
use crate::worker::{Pipeline, Report, Worker};
use crate::{telemetry, verify};
use sandbox::{TOKEN, configure, start_anew};

/// How each search finds its notes, and its query.
const SEARCHES: &[(&str, &str)] = &[
    ("by meaning; no note has the word", "insomnia"),
    ("by meaning; no note says vegetarian", "vegetarian supper"),
    ("by meaning", "database server ran out of storage"),
    ("by exact word", "Quillfeather"),
    ("by exact word", "ERR-4417"),
];

/// A table of an application, as it may be before ELF.
const TICKETS: &str = "
create table tickets (id bigint primary key, subject text, body text);
insert into tickets values
    (1, 'Spare key', 'The spare key hangs behind the kitchen clock.'),
    (2, 'Boiler', 'The boiler in the cellar needs a new valve.');";

const UPDATE: &str =
    "update tickets set body = 'The heating works again: the valve came on Friday.' where id = 2";

const NEXT: &str = "
To look at the admin page, keep the worker running at the end: make demo KEEP=1 (elf demo --keep).
Next: index and search tables and notes of your own, with ten lines of configuration: docs/guide/install.md (By hand).";

/// `max_tokens` at first, and after the demo's reindex.
const MAX_TOKENS: usize = 256;
const FEWER_TOKENS: usize = 128;

/// Arguments of `elf demo`.
#[derive(clap::Args)]
pub struct Args {
    /// A Postgres server with pgvector and a user who may create databases; the demo drops and makes elf_demo
    #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
    database_url: String,
    /// A sentence-transformers folder or Hugging Face repository
    #[arg(
        long,
        env = "ELF_DEMO_MODEL",
        default_value = "sentence-transformers/all-MiniLM-L6-v2"
    )]
    model: String,
    /// The folder of the embedded vector engine; emptied first if the demo made it
    #[arg(long, env = "ELF_DEMO_DIR", default_value = ".elf/demo")]
    dir: PathBuf,
    /// The folder of notes to import
    #[arg(long, default_value = "examples/notes")]
    notes: PathBuf,
    /// Keep the worker and its admin page running at the end, until stopped
    #[arg(long)]
    keep: bool,
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    anyhow::ensure!(
        args.notes.is_dir(),
        "there is no folder {}: name one that holds .md, .txt or .log files with --notes",
        args.notes.display()
    );
    let _lock = start_anew(&args).await?;
    let config = configure(&args, MAX_TOKENS, "")?;
    let _logging = telemetry::init_logging(&config.service, telemetry::Reader::Log);
    let admin_port = AdminPort::start(&config.service, Bounds::of_this_process(&config)).await?;
    let store = wiring::store(&config).await?;
    store.migrate().await?;
    follow_a_table(&args, &store).await?;

    say("Index the rows: elf worker")?;
    let pipeline = wiring::pipeline(&config).await?;
    serving::register_or_check_version(&pipeline.serving.store, &pipeline.version).await?;
    serving::ensure_ready(&pipeline.serving, &pipeline.version).await?;
    print(&format!(
        "embedding version {}, index {}",
        pipeline.version.name,
        pipeline.serving.index.describe()
    ))?;
    let worker = Arc::new(Worker::new(
        pipeline.clone(),
        &config.worker,
        &config.outbox,
    ));
    let _watching = admin_port.watch(pipeline.clone(), worker.clone()).await;
    print(&format!(
        "admin page, while the demo runs: http://{}",
        admin_port.address
    ))?;
    print(&counts(&drain(&worker, 2).await?))?;
    let searcher = wiring::searcher(&pipeline, &config).await?;
    say("Search them: \"I am locked out of the house\"")?;
    show(&searcher, "I am locked out of the house", 1).await?;
    say("Change a row, and search for what is new: \"is it warm again?\"")?;
    print(UPDATE)?;
    store.pool().execute(UPDATE).await?;
    print(&counts(&drain(&worker, 1).await?))?;
    show(&searcher, "is it warm again?", 1).await?;

    say("Import")?;
    let began = Instant::now();
    let notes = import::import_folder(&store, &args.notes, config.worker.max_note_bytes).await?;
    print(&format!(
        "{notes} notes from {} in {:.2} s, each with its outbox row in the same transaction",
        args.notes.display(),
        began.elapsed().as_secs_f64()
    ))?;
    let index = pipeline.serving.index.clone();
    let collection = pipeline.serving.alias.clone();
    print(
        "chunking, embedding and indexing them; a small model on a few cores takes half a minute",
    )?;
    let report = drain(&worker, notes).await?;
    print(&counts(&report))?;
    let points = index.count(&collection, &Filter::default()).await?;
    print(&format!("{points} points in the index"))?;

    for (how, query) in SEARCHES {
        say(&format!("Search {how}: {query:?}"))?;
        show(&searcher, query, 3).await?;
    }
    delete(&pipeline, &worker, &searcher).await?;
    let answers = answers(&searcher).await?;
    lose_and_rebuild(&pipeline, &searcher, &answers).await?;
    Box::pin(reindex_and_go_back(
        &args, &pipeline, &worker, &searcher, &answers,
    ))
    .await?;
    over_http::search(&config, &pipeline).await?;
    say("Done")?;
    print("Everything above ran against a real Postgres, a real vector engine and a real model.")?;
    if args.keep {
        return run_until_stopped(&admin_port, &worker).await;
    }
    print(NEXT)
}

/// Runs the worker as `elf worker` does, until it is stopped.
async fn run_until_stopped(admin_port: &AdminPort, worker: &Worker) -> anyhow::Result<()> {
    print(&format!(
        "\nThe worker keeps running: see http://{} (token {TOKEN}). Ctrl-C stops it.",
        admin_port.address
    ))?;
    worker.run(stop_on_signals("work in flight ends")?).await;
    Ok(())
}

/// Indexes what is due, about `notes` notes, and returns what the worker did.
async fn drain(worker: &Arc<Worker>, notes: u64) -> anyhow::Result<Report> {
    let before = worker.totals();
    let progress = Progress::start("indexing", {
        let (worker, before) = (worker.clone(), before.notes);
        move || (worker.totals().notes - before, notes)
    });
    let drained = worker.drain(CancellationToken::new()).await;
    progress.finish();
    drained?;
    Ok(worker.totals().since(&before))
}

fn counts(report: &Report) -> String {
    format!(
        "notes {}, chunks {}, embedded {}, reused {}, points written {}, in {:.2} s",
        report.notes, report.chunks, report.embedded, report.reused, report.points, report.seconds
    )
}

async fn show(searcher: &Searcher, query: &str, hits: usize) -> anyhow::Result<()> {
    let began = Instant::now();
    let items = searcher.search(&Request::hybrid(query, hits)).await?.items;
    print_lines(&search::lines(&items))?;
    print(&format!(
        "    ({:.0} ms)",
        began.elapsed().as_secs_f64() * 1000.0
    ))
}

/// Makes a table, and what `elf source add --apply` makes for it.
async fn follow_a_table(args: &Args, store: &Store) -> anyhow::Result<()> {
    say("A table of an application")?;
    print(TICKETS.trim())?;
    store.pool().execute(TICKETS).await?;
    say("Let ELF follow it: elf source add tickets --apply")?;
    let (_, block) = source::proposed(store, "tickets").await?;
    print(&block)?;
    let config = configure(args, MAX_TOKENS, &block)?;
    let [tickets] = &config.sources[..] else {
        anyhow::bail!("the proposed block is not one source");
    };
    let (rows, counts) = source::follow(store, tickets).await?;
    print(&source::followed(tickets, rows, counts))
}

async fn delete(
    pipeline: &Pipeline,
    worker: &Arc<Worker>,
    searcher: &Searcher,
) -> anyhow::Result<()> {
    let query = SEARCHES[SEARCHES.len() - 1].1;
    let items = searcher.search(&Request::hybrid(query, 1)).await?.items;
    let Some(best) = items.first() else {
        return Ok(());
    };
    say(&format!(
        "Delete {}",
        best.note.key.as_deref().unwrap_or("the best hit")
    ))?;
    sqlx::query("delete from memory_notes where note_id = $1")
        .bind(best.note_id)
        .execute(pipeline.serving.store.pool())
        .await?;
    print(&counts(&drain(worker, 1).await?))?;
    let left = pipeline
        .serving
        .index
        .count(
            &pipeline.serving.alias,
            &Filter {
                note_ids: Some(vec![best.note_id]),
                ..Filter::default()
            },
        )
        .await?;
    print(&format!(
        "{left} of its points are still in the index; the same search now finds:"
    ))?;
    show(searcher, query, 3).await
}

/// The best chunks of every search. They stay the same while the index holds the same points.
async fn answers(searcher: &Searcher) -> anyhow::Result<Vec<Vec<Uuid>>> {
    let mut answers = Vec::new();
    for (_, query) in SEARCHES {
        let items = searcher.search(&Request::hybrid(query, 3)).await?.items;
        answers.push(items.iter().map(|item| item.chunk_id).collect());
    }
    Ok(answers)
}

async fn compare_answers(searcher: &Searcher, before: &[Vec<Uuid>]) -> anyhow::Result<()> {
    let now = answers(searcher).await?;
    let same = now.iter().zip(before).filter(|(now, before)| now == before);
    print(&format!(
        "the same answers in {} of {} searches",
        same.count(),
        before.len()
    ))
}

async fn lose_and_rebuild(
    pipeline: &Pipeline,
    searcher: &Searcher,
    before: &[Vec<Uuid>],
) -> anyhow::Result<()> {
    say("Lose the index: the collection and its alias are dropped")?;
    for collection in pipeline.serving.store.registered_collections().await? {
        pipeline
            .serving
            .index
            .drop_collection(&collection.name)
            .await?;
    }
    let query = SEARCHES[0].1;
    let answer = searcher.search(&Request::hybrid(query, 1)).await?;
    match &answer.degraded[..] {
        [missing] => print(&format!(
            "a search for {query:?} is answered by Postgres alone: {}",
            missing.reason
        ))?,
        _ => anyhow::bail!("the dropped collection still answers"),
    }
    print(&search::lines(&answer.items))?;
    say("Rebuild it from Postgres")?;
    let options = rebuild::Options {
        swap_last: false,
        take_alias: false,
        keep_old: false,
        restart: false,
        notice: Arc::new(|_| {}),
    };
    let report = rebuild::run(
        &pipeline.serving,
        &options,
        Arc::default(),
        CancellationToken::new(),
    )
    .await?;
    print(&super::rebuild::lines(&report))?;
    compare_answers(searcher, before).await
}

/// Reindexes with smaller chunks, which are another embedding version, and rolls back.
async fn reindex_and_go_back(
    args: &Args,
    pipeline: &Pipeline,
    worker: &Arc<Worker>,
    searcher: &Searcher,
    before: &[Vec<Uuid>],
) -> anyhow::Result<()> {
    let smaller = configure(args, FEWER_TOKENS, "")?;
    say(&format!(
        "Change max_tokens from {MAX_TOKENS} to {FEWER_TOKENS}: elf reindex --dry-run"
    ))?;
    let setup = wiring::setup(&smaller).await?;
    let EmbeddingSetup {
        store,
        chunker,
        version,
        ..
    } = &setup;
    let estimate =
        reindex::estimate(store, chunker, version, &serving::Progress::default()).await?;
    print(&format!(
        "{} notes, {} chunks, {} of them known; to embed: {} texts of {} tokens",
        estimate.notes, estimate.chunks, estimate.known, estimate.to_embed, estimate.tokens
    ))?;

    say("elf reindex --swap: the new version is built beside the old one, verified, then served")?;
    let built = wiring::pipeline_of(setup, &smaller, pipeline.serving.index.clone());
    let builder = Worker::new(built.clone(), &smaller.worker, &smaller.outbox);
    let options = verify::Options {
        repair: false,
        ..verify::Options::repairing()
    };
    let noted = options.progress.clone();
    let progress = Progress::start("reindexing", move || (noted.done(), noted.total()));
    let done = reindex::run(
        &built,
        &builder,
        Then::Swap,
        &options,
        CancellationToken::new(),
    )
    .await;
    progress.finish();
    let done = done?;
    print(&counts(&done.work))?;
    if let Some(verified) = &done.verified {
        print(&super::verify::lines(verified))?;
    }
    print(&format!("{} is served; a search with it:", done.version))?;
    show(&wiring::searcher(&built, &smaller).await?, SEARCHES[2].1, 3).await?;

    say("elf reindex rollback: the old version was kept")?;
    let back = reindex::rollback(&pipeline.serving).await?;
    print(&format!(
        "{} is served again; {} notes are due for it",
        back.version, back.due
    ))?;
    print(&counts(&drain(worker, back.due).await?))?;
    compare_answers(searcher, before).await
}

fn say(heading: &str) -> anyhow::Result<()> {
    print(&format!("\n== {heading}"))
}
