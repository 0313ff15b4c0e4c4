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
    let [different, equal] = [
        one_after_the_other(&api, "different", tenth).await?,
        one_after_the_other(&api, "equal", tenth).await?,
    ];
    // Different texts grow too: the indexes of Postgres, and the graphs that Qdrant builds from
    // about 13,000 vectors on, on the same processors.
    println!(
        "  equal texts grew {:.2} times as much as different ones (asked: 1.1 or less), and took \
         {:.2} of their time (asked: 1 or less)",
        equal.growth() / different.growth(),
        equal.seconds[1] / different.seconds[1]
    );
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

const PROCESSES: [&str; 3] = ["elf", "postgres", "qdrant"];

/// What a note costs among few notes, and then among many more.
#[derive(Default)]
struct Growth {
    seconds: [f64; 2],
    /// CPU seconds of each of [`PROCESSES`].
    cpu: [[f64; 3]; 2],
}

impl Growth {
    fn growth(&self) -> f64 {
        self.seconds[1] / self.seconds[0]
    }
}

async fn one_after_the_other(api: &str, kind: &str, tenth: usize) -> Result<Growth> {
    let mut site = site(api).await?;
    let worker = Worker::start(site.folder.path())?;
    let mut cost = Growth::default();
    for (part, notes) in EQUAL.into_iter().enumerate() {
        let notes = notes / tenth;
        let texts = match kind {
            "equal" => vec!["ok, thanks".to_owned(); notes],
            _ => texts(notes, notes),
        };
        site.insert(&texts).await?;
        let before = PROCESSES.map(cpu_seconds);
        let began = Instant::now();
        site.wait_until_drained().await?;
        cost.seconds[part] = began.elapsed().as_secs_f64() / notes as f64;
        for (i, process) in PROCESSES.into_iter().enumerate() {
            cost.cpu[part][i] = (cpu_seconds(process) - before[i]) / notes as f64;
        }
    }
    drop(worker);
    site.end().await?;
    println!(
        "  {kind} texts: {:.3} ms a note for {}, {:.3} for the next {}, {:.2} times",
        cost.seconds[0] * 1e3,
        EQUAL[0] / tenth,
        cost.seconds[1] * 1e3,
        EQUAL[1] / tenth,
        cost.growth()
    );
    for (i, process) in PROCESSES.into_iter().enumerate() {
        let [few, many] = cost.cpu.map(|cpu| cpu[i] * 1e3);
        println!("    CPU of {process:8} {few:.3} ms a note, then {many:.3}");
    }
    Ok(cost)
}

fn texts(from: usize, count: usize) -> Vec<String> {
    (from..from + count).map(daemon::text).collect()
}

/// CPU seconds that the processes of this name have used so far, with the children that ended.
/// 0 where there is no `/proc`.
fn cpu_seconds(name: &str) -> f64 {
    const TICKS_PER_SECOND: f64 = 100.0;
    let ticks_of = |stat: &str| -> Option<u64> {
        let (head, tail) = stat.rsplit_once(") ")?;
        let is_it = head.split_once('(')?.1 == name;
        // See proc_pid_stat(5): utime, stime, cutime, cstime.
        let times = tail.split(' ').skip(11).take(4);
        is_it.then(|| times.filter_map(|ticks| ticks.parse::<u64>().ok()).sum())
    };
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let stats =
        processes.filter_map(|process| std::fs::read_to_string(process.path().join("stat")).ok());
    let ticks: u64 = stats.filter_map(|stat| ticks_of(&stat)).sum();
    ticks as f64 / TICKS_PER_SECOND
}
