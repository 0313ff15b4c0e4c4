//! `elf rebuild` against a bare client that upserts ready-made points in the same
//! batches to the same engine; `elf verify` against the rebuild; and how much memory a
//! rebuild takes for ten times as many chunks. The rows are made in SQL.
//!
//! `DATABASE_URL` names the Postgres server; Qdrant is `QDRANT_URL`, else the
//! `qdrant` program on the PATH. Without either there is nothing to compare with.

#![expect(
    clippy::large_futures,
    reason = "a bench polls them on the main thread"
)]

use std::sync::Arc;
use std::time::Instant;

use elf::rebuild::{self, RebuildError};
use elf::registry::{self, CollectionTarget, IndexContext, Progress};
use elf::store::Depth;
use elf::verify;
use futures::stream::{self, StreamExt, TryStreamExt};
use qdrant_client::qdrant::{
    DocumentBuilder, NamedVectors, PointStruct, UpdateMode, UpsertPointsBuilder, Vector,
};
use qdrant_client::{Payload, Qdrant};
use stock::{DIM, Database, Result, site, site_of, spec, values, version};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

#[path = "../tests/support/qdrant_server.rs"]
mod qdrant_server;
mod stock;

const CHUNKS: usize = 100_000;
const MANY_CHUNKS: usize = 1_000_000;
const ROUNDS: usize = 3;
/// As many points in a request, and as many requests in flight, as a rebuild has.
const BATCH: usize = 512;
const IN_FLIGHT: usize = 4;

fn main() -> Result<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    let mut args = std::env::args().skip(1);
    match (args.next().as_deref(), args.next()) {
        // A process of its own, so that its memory is the rebuild's alone.
        (Some("--copy"), Some(database)) => runtime.block_on(copy(&database)),
        _ => runtime.block_on(compare()),
    }
}

async fn compare() -> Result<()> {
    let Some(url) = qdrant_server::url() else {
        println!("rebuild: skipped, it takes a Qdrant server (QDRANT_URL, or qdrant on the PATH)");
        return Ok(());
    };
    println!("rebuild, {CHUNKS} chunks, {DIM} dimensions, Qdrant server at {url}");
    let database = Database::create(CHUNKS).await?;
    let site = site(&database.name, url).await?;
    let (mut to_bare, mut to_rebuild) = (Vec::new(), Vec::new());
    for round in 1..=ROUNDS {
        let bare = bare_client(&site, url).await?;
        let (rebuild, collection) = copied(&site).await?;
        let target = CollectionTarget {
            store: site.store.clone(),
            index: site.index.clone(),
            version: version().name,
            collection,
            writes: Default::default(),
        };
        let began = Instant::now();
        let verified = verify::all(&target, DIM, &looking()).await?;
        let verify = CHUNKS as f64 / began.elapsed().as_secs_f64();
        assert_eq!((verified.points, verified.drift()), (CHUNKS as u64, 0));
        rebuild::drop_leftovers(&site).await?;
        to_bare.push(rebuild / bare);
        to_rebuild.push(verify / rebuild);
        println!(
            "  round {round}: bare client {bare:.0} points/s, rebuild {rebuild:.0} points/s (ratio {:.2}), \
             verify {verify:.0} chunks/s (ratio {:.1})",
            to_bare[round - 1],
            to_rebuild[round - 1]
        );
    }
    println!(
        "  rebuild / bare client: {:.2} (asked: 0.85 or more)",
        median(to_bare)
    );
    println!(
        "  verify / rebuild: {:.1} (asked: 3 or more)",
        median(to_rebuild)
    );
    database.end(&site).await?;

    for chunks in [CHUNKS, MANY_CHUNKS] {
        println!(
            "peak resident memory of a rebuild of {chunks} chunks (asked: under 200 MB, and flat):"
        );
        let database = Database::create(chunks).await?;
        let child = std::process::Command::new(std::env::current_exe()?)
            .args(["--copy", &database.name])
            .env("QDRANT_URL", url)
            .output()?;
        if !child.status.success() {
            eprint!("{}", String::from_utf8_lossy(&child.stderr));
            return Err("the memory measurement failed".into());
        }
        print!("{}", String::from_utf8_lossy(&child.stdout));
        let site = site_of(&database.name, url).await?;
        database.end(&site).await?;
    }
    Ok(())
}

fn median(mut ratios: Vec<f64>) -> f64 {
    ratios.sort_by(f64::total_cmp);
    ratios[ratios.len() / 2]
}

fn options() -> rebuild::Options {
    rebuild::Options {
        swap_last: false,
        take_alias: false,
        keep_old: false,
        restart: false,
        notice: Arc::new(|_| {}),
    }
}

fn looking() -> verify::Options {
    verify::Options {
        repair: false,
        ..verify::Options::repairing()
    }
}

/// Points per second of a rebuild up to the last point, and the collection that it has
/// filled. The engine's own optimising after that takes minutes and is not measured.
async fn copied(site: &IndexContext) -> Result<(f64, String)> {
    let progress = Arc::new(Progress::default());
    let stop = CancellationToken::new();
    let running = tokio::spawn({
        let (site, progress, stop) = (site.clone(), progress.clone(), stop.clone());
        async move { rebuild::run(&site, &options(), progress, stop).await }
    });
    let wait = || tokio::time::sleep(std::time::Duration::from_millis(5));
    while progress.total() == 0 && !running.is_finished() {
        wait().await;
    }
    let began = Instant::now();
    while progress.done() < progress.total() && !running.is_finished() {
        wait().await;
    }
    let rate = progress.done() as f64 / began.elapsed().as_secs_f64();
    stop.cancel();
    match running.await? {
        Err(RebuildError::Stopped { done, total }) if done == total => {}
        ended => return Err(format!("the rebuild ended early: {ended:?}").into()),
    }
    let collections = site.store.registered_collections().await?;
    let filled = collections.into_iter().find(|c| c.is_building());
    Ok((rate, filled.ok_or("no collection was filled")?.name))
}

async fn copy(database: &str) -> Result<()> {
    let url = qdrant_server::url().ok_or("no Qdrant server")?;
    let (rate, _) = copied(&site(database, url).await?).await?;
    let status = std::fs::read_to_string("/proc/self/status")?;
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .ok_or("no VmHWM")?;
    let kib: f64 = peak.trim().trim_end_matches(" kB").parse()?;
    println!("  {:.0} MB, {rate:.0} points/s", kib / 1024.0);
    Ok(())
}

/// Points per second of a client that has all points ready and nothing else to do.
async fn bare_client(site: &IndexContext, url: &str) -> Result<f64> {
    let name = format!("{}_bare", site.alias);
    site.index.create_collection(&name, &spec(site)).await?;
    site.index.bulk_load(&name, true).await?;
    let batches = ready_made(site, &name).await?;
    let client = Qdrant::from_url(url)
        .timeout(std::time::Duration::from_secs(60))
        .skip_compatibility_check()
        .build()?;
    let began = Instant::now();
    stream::iter(batches)
        .map(|batch| client.upsert_points(batch))
        .buffer_unordered(IN_FLIGHT)
        .try_for_each(|_| async { Ok(()) })
        .await?;
    let rate = CHUNKS as f64 / began.elapsed().as_secs_f64();
    site.index.drop_collection(&name).await?;
    Ok(rate)
}

async fn ready_made(site: &IndexContext, collection: &str) -> Result<Vec<UpsertPointsBuilder>> {
    let options = serde_json::to_value(&site.bm25)?;
    let options = values(options.as_object().ok_or("no object")?);
    let mut batches = Vec::new();
    let mut after = Uuid::nil();
    loop {
        let page = site
            .store
            .live_chunks(
                &version().name,
                after,
                Uuid::max(),
                BATCH,
                8 << 20,
                Depth::Whole,
            )
            .await?;
        let Some(last) = page.last() else {
            return Ok(batches);
        };
        after = last.chunk_id;
        let mut points = Vec::new();
        for chunk in page {
            let payload = registry::payload(&chunk, &version().name).to_json();
            let text = chunk.text.ok_or("no text")?;
            let vectors = NamedVectors::default()
                .add_vector("dense", Vector::new_dense(chunk.vector.ok_or("no vector")?))
                .add_vector(
                    "bm25",
                    DocumentBuilder::new(text, "qdrant/bm25")
                        .options(options.clone())
                        .build(),
                );
            points.push(PointStruct::new(
                chunk.chunk_id.to_string(),
                vectors,
                Payload::from(values(&payload)),
            ));
        }
        batches.push(
            UpsertPointsBuilder::new(collection, points)
                .wait(true)
                .update_mode(UpdateMode::InsertOnly),
        );
    }
}
