//! `elf rebuild` up to its last point against a bare client that has all points ready and nothing
//! else to do; verify against rebuild; and the memory of a rebuild. The rows are made in SQL.
//!
//! The engine's own optimising after the last point takes minutes and is no part of it.
//!
//! Both sides load into small segments, which made both about twice as fast. So what a rebuild does beside the engine
//! weighs twice as much, and a verify, which did not change, is fewer times as fast. Of the 24 µs that Postgres takes
//! for a point, 12 look up chunk, vector, note and revision, and 3 look again after the write; without the second
//! look, points of a chunk that was deleted meanwhile would stay. Tried: to read the next page while one is written
//! (no gain).

use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use elf::rebuild::{self, RebuildError};
use elf::serving::{self, CollectionTarget, Progress, Serving};
use elf::store::Depth;
use elf::verify;
use futures::stream::{self, StreamExt, TryStreamExt};
use qdrant_client::Payload;
use qdrant_client::qdrant::{
    DocumentBuilder, NamedVectors, PointStruct, UpsertPointsBuilder, Vector,
};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::bare::Setting;
use crate::corpus::Corpus;
use crate::engine::{self, Engine};
use crate::report::{Report, Side, Target};
use crate::rounds::Rounds;
use crate::stock::Database;
use crate::{Options, Result, daemon, process};

const DIMS: [usize; 2] = [384, 1536];

pub async fn run(options: Options) -> Result<()> {
    let Some((engine, mut report)) = engine::server("rebuild", options).await? else {
        return Ok(());
    };
    let corpus = Corpus::load()?;
    report.fact("texts", &corpus.source);
    let chunks = options.size(100_000, 2000);
    for dim in DIMS {
        let database = Database::create(&corpus, chunks, dim).await?;
        let serving = database.serving(&engine.url).await?;
        speeds(&mut report, options, &engine, &database, &serving).await?;
        database.end(&serving).await?;
    }
    let mut peaks = Vec::new();
    for chunks in [chunks, options.size(1_000_000, 4000)] {
        let peak = shipped(&engine, &corpus, chunks).await?;
        let name = format!("peak memory of elf rebuild, {chunks} chunks");
        report.value(&name, "MB", vec![peak], Target::AtMost(100.0));
        peaks.push(peak);
    }
    report.value(
        "memory, the larger rebuild / the smaller",
        "",
        vec![peaks[1] / peaks[0]],
        Target::AtMost(1.2),
    );
    report.write()
}

async fn speeds(
    report: &mut Report,
    options: Options,
    engine: &Engine,
    database: &Database,
    serving: &Serving,
) -> Result<()> {
    let dim = database.dim;
    let bare = Bare::new(engine, database, serving).await?;
    let setting = bare.best_setting(options).await?;
    report.fact(
        &format!("bare client at {dim} dimensions"),
        format!(
            "{} requests of {} points in flight",
            setting.lanes, setting.batch
        ),
    );
    let mut verified = Vec::new();
    let [rebuilt, upserted] = Rounds::of(options)
        .measure(
            async || {
                let (rate, collection) = copied(serving).await?;
                verified.push(verify_rate(database, serving, collection).await?);
                rebuild::drop_leftovers(serving).await?;
                Ok(rate)
            },
            async || bare.rate(setting).await,
        )
        .await?;
    let chunks = database.chunks;
    report.ratio(
        &format!("{chunks} chunks, {dim} dimensions: rebuild / bare upsert"),
        "points/s",
        [
            Side::new("rebuild", rebuilt.clone()),
            Side::new("bare upsert", upserted),
        ],
        Target::AtLeast(0.97),
    );
    let verified = verified.split_off(verified.len() - rebuilt.len());
    report.ratio(
        &format!("{chunks} chunks, {dim} dimensions: verify / rebuild"),
        "chunks/s",
        [Side::new("verify", verified), Side::new("rebuild", rebuilt)],
        Target::AtLeast(8.0),
    );
    Ok(())
}

pub fn to_the_end() -> rebuild::Options {
    rebuild::Options {
        swap_last: false,
        take_alias: false,
        keep_old: false,
        restart: false,
        notice: Arc::new(|_| {}),
    }
}

/// Points per second of a rebuild, and the collection that it has filled.
pub async fn copied(serving: &Serving) -> Result<(f64, String)> {
    let options = to_the_end();
    let progress = Arc::new(Progress::default());
    let stop = CancellationToken::new();
    let running = tokio::spawn({
        let (serving, progress, stop) = (serving.clone(), progress.clone(), stop.clone());
        async move { rebuild::run(&serving, &options, progress, stop).await }
    });
    let wait = || tokio::time::sleep(Duration::from_millis(5));
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
        // Small collections need no optimising, so the end may come before the stop.
        Ok(_) => return Err("the rebuild swapped the alias before it was stopped".into()),
        ended => return Err(format!("the rebuild ended early: {ended:?}").into()),
    }
    let collections = serving.store.registered_collections().await?;
    let filled = collections.into_iter().find(|c| c.is_building());
    Ok((rate, filled.ok_or("no collection was filled")?.name))
}

/// Chunks per second of a verify that finds no drift.
pub async fn verify_rate(
    database: &Database,
    serving: &Serving,
    collection: String,
) -> Result<f64> {
    let target = CollectionTarget {
        store: serving.store.clone(),
        index: serving.index.clone(),
        version: database.version().name,
        collection,
        writes: Default::default(),
    };
    let options = verify::Options {
        repair: false,
        ..verify::Options::repairing()
    };
    let began = Instant::now();
    let verified = verify::all(&target, database.dim, &options).await?;
    let rate = database.chunks as f64 / began.elapsed().as_secs_f64();
    assert_eq!(
        (verified.points, verified.drift()),
        (database.chunks as u64, 0)
    );
    Ok(rate)
}

/// A client with all points ready.
struct Bare<'a> {
    client: qdrant_client::Qdrant,
    database: &'a Database,
    serving: &'a Serving,
    points: Vec<PointStruct>,
}

impl<'a> Bare<'a> {
    async fn new(engine: &Engine, database: &'a Database, serving: &'a Serving) -> Result<Self> {
        Ok(Self {
            client: engine::client(&engine.url)?,
            points: ready_made(database, serving).await?,
            database,
            serving,
        })
    }

    async fn best_setting(&self, options: Options) -> Result<Setting> {
        let (mut best, mut best_rate) = (
            Setting {
                lanes: 4,
                batch: 256,
            },
            0.0,
        );
        if options.quick {
            return Ok(best);
        }
        for (lanes, batch) in [
            (4, 256),
            (2, 256),
            (2, 512),
            (4, 128),
            (4, 512),
            (8, 128),
            (8, 256),
        ] {
            let setting = Setting { lanes, batch };
            let rate = self.rate(setting).await?;
            if rate > best_rate {
                (best, best_rate) = (setting, rate);
            }
        }
        Ok(best)
    }

    /// Points per second into a collection like the one that a rebuild fills.
    async fn rate(&self, setting: Setting) -> Result<f64> {
        let name = format!("{}_bare", self.serving.alias);
        let index = &self.serving.index;
        index
            .create_collection(&name, &self.database.spec(self.serving))
            .await?;
        index.begin_load(&name).await?;
        let requests: Vec<UpsertPointsBuilder> = self
            .points
            .chunks(setting.batch)
            .map(|points| UpsertPointsBuilder::new(&name, points.to_vec()).wait(true))
            .collect();
        let began = Instant::now();
        stream::iter(requests)
            .map(|request| {
                let client = self.client.clone();
                tokio::spawn(async move { client.upsert_points(request).await })
            })
            .buffer_unordered(setting.lanes)
            .map(|ended| Ok::<_, crate::Error>(ended??))
            .try_for_each(|_| async { Ok(()) })
            .await?;
        let rate = self.points.len() as f64 / began.elapsed().as_secs_f64();
        assert_eq!(
            self.database.points(self.serving, &name).await?,
            self.points.len() as u64
        );
        index.drop_collection(&name).await?;
        Ok(rate)
    }
}

async fn ready_made(database: &Database, serving: &Serving) -> Result<Vec<PointStruct>> {
    let options = engine::bm25_options(&serving.bm25)?;
    let version = database.version().name;
    let mut points = Vec::new();
    let mut after = Uuid::nil();
    loop {
        let page = serving
            .store
            .live_chunks(&version, after, Uuid::max(), 512, 8 << 20, Depth::Whole)
            .await?;
        let Some(last) = page.last() else {
            return Ok(points);
        };
        after = last.chunk_id;
        for chunk in page {
            let payload = serving::payload(&chunk, &version).to_json();
            let text = chunk.text.ok_or("no text")?;
            let document = DocumentBuilder::new(text, "qdrant/bm25")
                .options(options.clone())
                .build();
            let vectors = NamedVectors::default()
                .add_vector("dense", Vector::new_dense(chunk.vector.ok_or("no vector")?))
                .add_vector("bm25", document);
            let payload = Payload::from(engine::values(&payload.into())?);
            points.push(PointStruct::new(
                chunk.chunk_id.to_string(),
                vectors,
                payload,
            ));
        }
    }
}

/// The peak memory in MB of the program `elf rebuild`, up to its last point.
async fn shipped(engine: &Engine, corpus: &Corpus, chunks: usize) -> Result<f64> {
    let database = Database::create(corpus, chunks, DIMS[0]).await?;
    let serving = database.serving(&engine.url).await?;
    let folder = tempfile::tempdir()?;
    std::fs::write(
        folder.path().join("elf.toml"),
        format!(
            "[storage.postgres]\ndsn = {:?}\n[storage.qdrant]\nurl = {:?}\nalias = {:?}\n",
            database.dsn()?,
            engine.url,
            database.name
        ),
    )?;
    let mut rebuild = daemon::elf(folder.path(), &["rebuild"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let copied = "select coalesce(sum(points), 0)::bigint from index_rebuild_ranges";
    let mut peak = 0.0;
    loop {
        let done: i64 = sqlx::query_scalar(copied)
            .fetch_one(serving.store.pool())
            .await?;
        if let Ok(now) = process::peak_mb(rebuild.id()) {
            peak = now;
        }
        if done == chunks as i64 {
            break;
        }
        if let Some(status) = rebuild.try_wait()? {
            // It is done before the last look when there is little to copy.
            if status.success() && chunks < 10_000 {
                break;
            }
            return Err(format!("elf rebuild ended early: {status}").into());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    rebuild.kill()?;
    rebuild.wait()?;
    database.end(&serving).await?;
    Ok(peak)
}
