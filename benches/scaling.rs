//! Several workers on one database: 1, 2 and 4 processes of `elf worker` over the same
//! backlog. Once with an embedding server that answers at once, so that the machine is the
//! limit, and once with a slow one, as real ones are.
//!
//! The workers are running and idle when the backlog is committed; the time is from that
//! commit to the empty outbox. Postgres (`DATABASE_URL`), Qdrant (`QDRANT_URL`, else the
//! `qdrant` program on the PATH) and the embedding server share the machine with them.

use std::time::{Duration, Instant};

use daemon::{DIM, Result, Site, Worker};

mod daemon;
#[path = "../tests/support/qdrant_server.rs"]
mod qdrant_server;

const WORKERS: [usize; 3] = [1, 2, 4];
const ROUNDS: usize = 3;

/// A provider, and how workers use it.
#[derive(Clone, Copy)]
struct Provider {
    name: &'static str,
    latency: Duration,
    inputs: usize,
    requests_in_flight: usize,
    notes: usize,
}

const PROVIDERS: [Provider; 2] = [
    Provider {
        name: "an embedding server that answers at once",
        latency: Duration::ZERO,
        inputs: 256,
        requests_in_flight: 4,
        notes: 6000,
    },
    Provider {
        name: "an embedding server that takes 200 ms for 32 texts, one request at a time from each worker",
        latency: Duration::from_millis(200),
        inputs: 32,
        requests_in_flight: 1,
        // Many more than the workers lease at once, or some would find nothing left.
        notes: 9600,
    },
];

#[tokio::main]
async fn main() -> Result<()> {
    let Some(qdrant) = qdrant_server::url() else {
        println!("scaling: skipped, it takes a Qdrant server (QDRANT_URL, or qdrant on the PATH)");
        return Ok(());
    };
    let cores = std::thread::available_parallelism()?;
    println!("scaling, one-chunk notes, {DIM} dimensions, {cores} cores for everything");
    for provider in PROVIDERS {
        println!("{}, {} notes:", provider.name, provider.notes);
        let mut rates: Vec<Vec<f64>> = vec![Vec::new(); WORKERS.len()];
        for round in 1..=ROUNDS {
            for (i, workers) in WORKERS.into_iter().enumerate() {
                rates[i].push(drained(provider, workers, qdrant).await?);
            }
            let line: Vec<String> = rates
                .iter()
                .map(|r| format!("{:.0}", r[round - 1]))
                .collect();
            println!(
                "  round {round}: {} notes/s with 1, 2, 4 workers",
                line.join(", ")
            );
        }
        for (i, workers) in WORKERS.into_iter().enumerate() {
            let mut ratios: Vec<f64> = rates[i]
                .iter()
                .zip(&rates[0])
                .map(|(n, one)| n / one)
                .collect();
            ratios.sort_by(f64::total_cmp);
            println!("  {workers} / 1: {:.2}", ratios[ROUNDS / 2]);
        }
    }
    Ok(())
}

/// Notes per second of so many workers, from the commit to the empty outbox.
async fn drained(provider: Provider, workers: usize, qdrant: &str) -> Result<f64> {
    let api = daemon::serve(provider.latency).await?;
    let settings = format!(
        "max_batch_inputs = {}\nconcurrency = {}\n",
        provider.inputs, provider.requests_in_flight
    );
    let mut site = Site::start(qdrant, &api, &settings).await?;
    let mut running = Vec::new();
    for _ in 0..workers {
        running.push(Worker::start(site.folder.path())?);
    }

    let texts: Vec<String> = (0..provider.notes).map(daemon::text).collect();
    site.insert(&texts).await?;
    let began = Instant::now();
    site.wait_until_drained().await?;
    let took = began.elapsed();
    let indexed: i64 =
        sqlx::query_scalar("select count(*) from note_index_state where chunk_count = 1")
            .fetch_one(&mut site.db)
            .await?;
    assert_eq!(indexed, provider.notes as i64, "one chunk a note");

    drop(running);
    site.end().await?;
    Ok(provider.notes as f64 / took.as_secs_f64())
}
