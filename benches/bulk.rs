//! A bulk load into a running daemon, for several states of Postgres's statistics, against
//! `elf worker --once` over the same notes; and notes with equal texts against notes with
//! different ones.
//!
//! The embedding server answers at once. Qdrant is `QDRANT_URL`, else the `qdrant` program
//! on the PATH, else the engine in the daemon's process. `--quick` takes a tenth.

use std::time::{Duration, Instant};

use daemon::{DIM, Result, Site, Worker};

mod daemon;
#[path = "../tests/support/qdrant_server.rs"]
mod qdrant_server;

const LOAD: usize = 20_000;
/// Indexed before the load, one after the other, so that every statement has been prepared.
const FIRST: usize = 20;
const EQUAL: [usize; 2] = [10_000, 100_000];
const STATEMENT_OF_ALL: &str = "vacuum analyze";

/// The statistics that Postgres has of the tables when the load begins.
#[derive(Clone, Copy)]
struct State {
    name: &'static str,
    /// Notes that are there, besides the first.
    stock: usize,
    vacuumed: bool,
    autovacuum: bool,
}

const STATES: [State; 4] = [
    State {
        name: "fresh",
        stock: 0,
        vacuumed: false,
        autovacuum: true,
    },
    State {
        name: "idle",
        stock: 0,
        vacuumed: true,
        autovacuum: true,
    },
    State {
        name: "vacuumed",
        stock: LOAD,
        vacuumed: true,
        autovacuum: true,
    },
    State {
        name: "never analysed",
        stock: LOAD,
        vacuumed: false,
        autovacuum: false,
    },
];

#[tokio::main]
async fn main() -> Result<()> {
    let tenth = if std::env::args().any(|arg| arg == "--quick") {
        10
    } else {
        1
    };
    let api = daemon::serve(Duration::ZERO).await?;
    println!(
        "bulk load, one-chunk notes, {DIM} dimensions, {} notes",
        LOAD / tenth
    );
    let once = drained_once(&api, tenth).await?;
    println!("  elf worker --once            {once:6.2} s");
    for state in STATES {
        let took = loaded(&api, state, tenth).await?;
        println!(
            "  running daemon, {:14} {took:5.2} s, {:.2} of --once (asked: 1.5 or less)",
            state.name,
            took / once
        );
    }
    for (name, is_equal) in [("different", false), ("equal", true)] {
        let [few, many] = one_after_the_other(&api, is_equal, tenth).await?;
        println!(
            "  {name} texts: {:.3} ms a note for {}, {:.3} for the next {}, {:.2} times (asked: 1.5 or less)",
            few * 1e3,
            EQUAL[0] / tenth,
            many * 1e3,
            EQUAL[1] / tenth,
            many / few
        );
    }
    Ok(())
}

async fn site(api: &str) -> Result<Site> {
    let index = qdrant_server::url().unwrap_or("embedded:index");
    Site::start(index, api, "").await
}

/// Seconds of a worker that is started for the load and ends after it.
async fn drained_once(api: &str, tenth: usize) -> Result<f64> {
    let mut site = site(api).await?;
    site.insert(&texts(0, LOAD / tenth)).await?;
    let began = Instant::now();
    let status = daemon::elf(site.folder.path(), "worker")
        .arg("--once")
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .status()?;
    let took = began.elapsed();
    assert!(status.success(), "it indexed them");
    site.end().await?;
    Ok(took.as_secs_f64())
}

/// Seconds from the commit of the load to the empty outbox.
async fn loaded(api: &str, state: State, tenth: usize) -> Result<f64> {
    let mut site = site(api).await?;
    if !state.autovacuum {
        for table in [
            "memory_notes",
            "memory_note_chunks",
            "note_chunk_embeddings",
            "note_embeddings",
            "indexing_outbox",
            "note_index_state",
        ] {
            let off = format!("alter table {table} set (autovacuum_enabled = off)");
            daemon::execute(&mut site.db, off).await?;
        }
    }
    let worker = Worker::start(site.folder.path())?;
    for i in 0..FIRST {
        site.insert(&texts(i, 1)).await?;
        site.wait_until_drained().await?;
    }
    if state.stock > 0 {
        site.insert(&texts(FIRST, state.stock / tenth)).await?;
        site.wait_until_drained().await?;
    }
    if state.vacuumed {
        daemon::execute(&mut site.db, STATEMENT_OF_ALL.into()).await?;
    }
    site.insert(&texts(10 * LOAD, LOAD / tenth)).await?;
    let began = Instant::now();
    site.wait_until_drained().await?;
    let took = began.elapsed();
    drop(worker);
    site.end().await?;
    Ok(took.as_secs_f64())
}

/// Seconds a note for few notes, and then for many more.
async fn one_after_the_other(api: &str, is_equal: bool, tenth: usize) -> Result<[f64; 2]> {
    let mut site = site(api).await?;
    let worker = Worker::start(site.folder.path())?;
    let mut seconds = [0.0; 2];
    for (seconds, notes) in seconds.iter_mut().zip(EQUAL) {
        let notes = notes / tenth;
        let texts = match is_equal {
            true => vec!["ok, thanks".to_owned(); notes],
            false => texts(notes, notes),
        };
        site.insert(&texts).await?;
        let began = Instant::now();
        site.wait_until_drained().await?;
        *seconds = began.elapsed().as_secs_f64() / notes as f64;
    }
    drop(worker);
    site.end().await?;
    Ok(seconds)
}

fn texts(from: usize, count: usize) -> Vec<String> {
    (from..from + count).map(daemon::text).collect()
}
