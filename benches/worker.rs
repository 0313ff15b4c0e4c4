//! The worker against a bare loop that does only the necessary work: encode every
//! text once, write the same rows to Postgres and the same points to the same
//! engine. The embedder costs nothing in both. Then: how soon a commit is
//! searchable, and how much memory a worker takes.
//!
//! `DATABASE_URL` names the Postgres server; Qdrant is `QDRANT_URL`, else the
//! `qdrant` program on the PATH, else the engine in this process.

#![expect(
    clippy::large_futures,
    reason = "a bench polls them on the main thread"
)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use elf::chunk::{Chunker, Tokenizer};
use elf::config::Config;
use elf::embed::provider::Provider;
use elf::index::{self, Filter, Payload, Point, UpsertMode};
use elf::note::{Labels, chunk_id};
use elf::registry::{self, IndexContext, embedding_version};
use elf::store::{Store, Version};
use elf::worker::{Worker, WorkerContext};
use free::{DIM, Free, free_vector};
use pgvector::Vector;
use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

mod free;
#[path = "../tests/support/qdrant_server.rs"]
mod qdrant_server;

const NOTES: usize = 10_000;
const ROUNDS: usize = 3;
const BATCH: usize = 256;
const FRESH_NOTES: usize = 200;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn main() -> Result<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    match std::env::args().nth(1).as_deref() {
        // A process of its own, so that its memory is the worker's alone.
        Some("--memory") => runtime.block_on(memory()),
        _ => runtime.block_on(compare()),
    }
}

async fn compare() -> Result<()> {
    let engine = Engine::start()?;
    println!(
        "worker, {NOTES} one-chunk notes, {DIM} dimensions, free embedder, {}",
        engine.name
    );
    let (mut bare, mut elf) = (Vec::new(), Vec::new());
    for round in 1..=ROUNDS {
        bare.push(bare_loop(&engine).await?.as_secs_f64());
        elf.push(worker_drain(&engine).await?.as_secs_f64());
        println!(
            "  round {round}: bare loop {:.2} s, worker {:.2} s, ratio {:.2}",
            bare[round - 1],
            elf[round - 1],
            bare[round - 1] / elf[round - 1]
        );
    }
    let mut ratios: Vec<f64> = bare.iter().zip(&elf).map(|(b, e)| b / e).collect();
    ratios.sort_by(f64::total_cmp);
    println!(
        "  worker / bare loop: {:.2} (asked: 0.50 or more)",
        ratios[ROUNDS / 2]
    );

    let mut waits = freshness(&engine).await?;
    waits.sort();
    println!(
        "commit to searchable, idle, {FRESH_NOTES} notes: p50 {:.1} ms (asked: 50), p99 {:.1} ms (asked: 250)",
        millis(waits[waits.len() / 2]),
        millis(waits[waits.len() * 99 / 100])
    );

    let child = std::process::Command::new(std::env::current_exe()?)
        .arg("--memory")
        .env("QDRANT_URL", engine.url.as_str())
        .output()?;
    print!("{}", String::from_utf8_lossy(&child.stdout));
    if !child.status.success() {
        eprint!("{}", String::from_utf8_lossy(&child.stderr));
        return Err("the memory measurement failed".into());
    }
    Ok(())
}

async fn memory() -> Result<()> {
    let engine = Engine::start()?;
    worker_drain(&engine).await?;
    let status = std::fs::read_to_string("/proc/self/status")?;
    let peak = status
        .lines()
        .find_map(|l| l.strip_prefix("VmHWM:"))
        .ok_or("no VmHWM")?;
    let kib: f64 = peak.trim().trim_end_matches(" kB").parse()?;
    println!(
        "peak resident memory of a draining worker: {:.0} MB (asked: 300 or less)",
        kib / 1024.0
    );
    Ok(())
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

/// A vector engine that every round talks to.
struct Engine {
    url: String,
    name: String,
    _folder: tempfile::TempDir,
}

impl Engine {
    fn start() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let (url, name) = match qdrant_server::url() {
            Some(url) => (url.to_owned(), format!("Qdrant server at {url}")),
            None => (
                format!("embedded:{}", folder.path().join("index").display()),
                "embedded engine".into(),
            ),
        };
        Ok(Self {
            url,
            name,
            _folder: folder,
        })
    }
}

/// A database and a collection of one round's own, and the parts of a worker.
struct Bench {
    context: WorkerContext,
    config: Config,
    pool: PgPool,
    admin: String,
    database: String,
    tokenizer: Arc<Tokenizer>,
}

impl Bench {
    async fn start(engine: &Engine) -> Result<Self> {
        let admin = std::env::var("DATABASE_URL")?;
        let database = format!("elf_bench_{}", Uuid::new_v4().simple());
        let mut connection = PgConnection::connect(&admin).await?;
        sqlx::raw_sql(AssertSqlSafe(format!("create database {database}")))
            .execute(&mut connection)
            .await?;
        let mut dsn = reqwest::Url::parse(&admin)?;
        dsn.set_path(&database);
        let model =
            std::env::var("ELF_TEST_MODEL").unwrap_or(".elf/models/all-MiniLM-L6-v2".into());
        let text = format!(
            "[storage.postgres]\ndsn = {:?}\n[storage.qdrant]\nurl = {:?}\nalias = {database:?}\n\
             [providers.embedding]\napi_base = \"http://127.0.0.1:1\"\nmodel = \"free\"\n\
             [chunking]\ntokenizer_repo = {model:?}\n",
            dsn.as_str(),
            engine.url,
        );
        let config = Config::parse(&text, "bench", &|_| None)?;
        let store = Store::connect(dsn.as_str(), 10).await?;
        store.migrate().await?;
        let tokenizer = Arc::new(Tokenizer::open(&model).await?);
        let chunker = Chunker::new(tokenizer.clone(), &config.chunking, "")?;
        let version: Version = embedding_version(&config, tokenizer.fingerprint(), DIM);
        registry::register_or_check_version(&store, &version).await?;
        let context = WorkerContext {
            stores: IndexContext {
                store,
                index: index::connect(&config.storage.qdrant).await?,
                alias: database.clone(),
                bm25: config.storage.qdrant.bm25.clone(),
            },
            provider: Arc::new(Provider::new(Arc::new(Free), &config.providers.embedding)),
            chunker: Arc::new(chunker),
            version,
            document_prefix: String::new(),
        };
        registry::ensure_ready(&context.stores, &context.version).await?;
        let pool = context.stores.store.pool().clone();
        Ok(Self {
            context,
            config,
            pool,
            admin,
            database,
            tokenizer,
        })
    }

    /// Writes the notes, and returns their ids and texts.
    async fn insert_notes(&self) -> Result<Vec<(Uuid, String)>> {
        let notes: Vec<(Uuid, String)> = (0..NOTES).map(|i| (Uuid::new_v4(), text(i))).collect();
        let ids: Vec<Uuid> = notes.iter().map(|n| n.0).collect();
        let texts: Vec<&str> = notes.iter().map(|n| n.1.as_str()).collect();
        sqlx::query(
            "insert into memory_notes (note_id, tenant_id, project_id, agent_id, scope, type, text)
             select n.id, 't', 'p', 'a', 's', 'n', n.text from unnest($1::uuid[], $2::text[]) n (id, text)",
        )
        .bind(&ids)
        .bind(&texts)
        .execute(&self.pool)
        .await?;
        sqlx::query("vacuum analyze").execute(&self.pool).await?;
        Ok(notes)
    }

    async fn end(self) -> Result<()> {
        if let Some(collection) = self
            .context
            .stores
            .index
            .resolve(&self.context.stores.alias)
            .await?
        {
            let points = self
                .context
                .stores
                .index
                .count(&collection, &Filter::default())
                .await?;
            let expected: i64 = sqlx::query_scalar("select count(*) from memory_note_chunks")
                .fetch_one(&self.pool)
                .await?;
            assert_eq!(points, expected as u64, "every chunk is a point");
            self.context
                .stores
                .index
                .drop_collection(&collection)
                .await?;
        }
        self.pool.close().await;
        let mut connection = PgConnection::connect(&self.admin).await?;
        let drop = format!("drop database {} with (force)", self.database);
        sqlx::raw_sql(AssertSqlSafe(drop))
            .execute(&mut connection)
            .await?;
        Ok(())
    }
}

/// The worker, from the full outbox to the empty one.
async fn worker_drain(engine: &Engine) -> Result<Duration> {
    let bench = Bench::start(engine).await?;
    bench.insert_notes().await?;
    let worker = Worker::new(
        bench.context.clone(),
        &bench.config.worker,
        &bench.config.outbox,
    );
    let began = Instant::now();
    worker.drain(CancellationToken::new()).await?;
    let took = began.elapsed();
    let report = worker.totals();
    assert_eq!(
        (report.notes, report.chunks),
        (NOTES as u64, NOTES as u64),
        "one chunk a note"
    );
    bench.end().await?;
    Ok(took)
}

/// Encode, insert, upsert; two batches in flight, nothing else.
async fn bare_loop(engine: &Engine) -> Result<Duration> {
    let bench = Arc::new(Bench::start(engine).await?);
    let notes = bench.insert_notes().await?;
    let collection = bench
        .context
        .stores
        .index
        .resolve(&bench.context.stores.alias)
        .await?
        .ok_or("no collection")?;
    let batches = Arc::new(std::sync::Mutex::new(
        notes
            .chunks(BATCH)
            .map(<[_]>::to_vec)
            .collect::<Vec<_>>()
            .into_iter(),
    ));
    let began = Instant::now();
    let mut lanes = Vec::new();
    for _ in 0..2 {
        let (bench, batches, collection) = (bench.clone(), batches.clone(), collection.clone());
        lanes.push(tokio::spawn(async move {
            loop {
                let next = batches.lock().expect("no lane panics").next();
                let Some(batch) = next else {
                    return Ok::<(), Box<dyn std::error::Error + Send + Sync>>(());
                };
                bare_batch(&bench, &collection, batch).await?;
            }
        }));
    }
    for lane in lanes {
        lane.await??;
    }
    let took = began.elapsed();
    match Arc::try_unwrap(bench) {
        Ok(bench) => bench.end().await?,
        Err(_) => return Err("a lane is still running".into()),
    }
    Ok(took)
}

async fn bare_batch(bench: &Bench, collection: &str, batch: Vec<(Uuid, String)>) -> Result<()> {
    let tokenizer = bench.tokenizer.clone();
    let (batch, tokens) = tokio::task::spawn_blocking(move || {
        let tokens: usize = batch
            .iter()
            .map(|(_, text)| tokenizer.count(text).unwrap_or(0))
            .sum();
        (batch, tokens)
    })
    .await?;
    assert!(tokens > 0);
    let vectors: Vec<Vec<f32>> = batch.iter().map(|(_, text)| free_vector(text)).collect();
    let version = &bench.context.version.name;
    let ids: Vec<Uuid> = batch.iter().map(|(note, _)| *note).collect();
    let chunks: Vec<Uuid> = ids.iter().map(|note| chunk_id(*note, 0)).collect();
    let ends: Vec<i32> = batch.iter().map(|(_, text)| text.len() as i32).collect();
    let texts: Vec<&str> = batch.iter().map(|(_, text)| text.as_str()).collect();
    let hashes: Vec<Vec<u8>> = texts
        .iter()
        .map(|t| elf::note::TextHash::of(t).0.to_vec())
        .collect();
    let rows: Vec<Vector> = vectors.iter().cloned().map(Vector::from).collect();
    let mut tx = bench.pool.begin().await?;
    sqlx::query(
        "insert into memory_note_chunks (chunk_id, note_id, chunk_index, start_offset, end_offset, text,
                                         text_sha256, embedding_version, revision)
         select c, n, 0, 0, e, t, h, $6, 1
           from unnest($1::uuid[], $2::uuid[], $3::int[], $4::text[], $5::bytea[]) u (c, n, e, t, h)",
    )
    .bind(&chunks)
    .bind(&ids)
    .bind(&ends)
    .bind(&texts)
    .bind(&hashes)
    .bind(version)
    .execute(&mut *tx)
    .await?;
    sqlx::query(
        "insert into note_chunk_embeddings (chunk_id, embedding_version, embedding_dim, vec)
         select c, $3, $4, v from unnest($1::uuid[], $2::vector[]) u (c, v)",
    )
    .bind(&chunks)
    .bind(&rows)
    .bind(version)
    .bind(DIM as i32)
    .execute(&mut *tx)
    .await?;
    sqlx::query(
        "insert into note_embeddings (note_id, embedding_version, embedding_dim, vec)
         select n, $3, $4, v from unnest($1::uuid[], $2::vector[]) u (n, v)",
    )
    .bind(&ids)
    .bind(&rows)
    .bind(version)
    .bind(DIM as i32)
    .execute(&mut *tx)
    .await?;
    tx.commit().await?;

    let points = batch
        .iter()
        .zip(vectors)
        .map(|((note, text), vector)| Point {
            payload: payload(*note, text, version),
            vector: Some(vector),
            text: text.clone(),
        });
    bench
        .context
        .stores
        .index
        .upsert(collection, points.collect(), UpsertMode::NotNewer)
        .await?;
    Ok(())
}

fn payload(note_id: Uuid, text: &str, version: &str) -> Payload {
    let of = |s: &str| s.to_owned();
    Payload {
        note_id,
        chunk_id: chunk_id(note_id, 0),
        chunk_index: 0,
        start_offset: 0,
        end_offset: text.len() as u64,
        status: of("active"),
        expires_at: None,
        labels: Labels {
            tenant_id: of("t"),
            project_id: of("p"),
            agent_id: of("a"),
            scope: of("s"),
            kind: of("n"),
            key: None,
            importance: 0.5,
            confidence: 1.0,
            updated_at: chrono::Utc::now(),
        },
        embedding_version: version.to_owned(),
        revision: 1,
    }
}

/// From the commit of a note to its first appearance in the index, one note at a
/// time, with a daemon that has nothing else to do.
async fn freshness(engine: &Engine) -> Result<Vec<Duration>> {
    let bench = Bench::start(engine).await?;
    let worker = Arc::new(Worker::new(
        bench.context.clone(),
        &bench.config.worker,
        &bench.config.outbox,
    ));
    let stop = CancellationToken::new();
    let running = tokio::spawn({
        let (worker, stop) = (worker.clone(), stop.clone());
        async move { worker.run(stop).await }
    });
    let mut waits = Vec::new();
    for i in 0..FRESH_NOTES {
        let note: Uuid = sqlx::query_scalar(
            "insert into memory_notes (tenant_id, project_id, agent_id, scope, type, text)
             values ('t', 'p', 'a', 's', 'n', $1) returning note_id",
        )
        .bind(text(i))
        .fetch_one(&bench.pool)
        .await?;
        let committed = Instant::now();
        let filter = Filter {
            note_ids: Some(vec![note]),
            ..Filter::default()
        };
        while bench
            .context
            .stores
            .index
            .count(&bench.context.stores.alias, &filter)
            .await?
            == 0
        {
            tokio::task::yield_now().await;
        }
        waits.push(committed.elapsed());
    }
    stop.cancel();
    running.await?;
    bench.end().await?;
    Ok(waits)
}

/// About 560 bytes of words, different for every `i`.
fn text(i: usize) -> String {
    const WORDS: &[&str] = &[
        "station",
        "the",
        "wind",
        "of",
        "battery",
        "a",
        "measured",
        "in",
        "morning",
        "and",
        "report",
        "sensor",
        "was",
        "humidity",
        "before",
        "rain",
        "gauge",
        "replaced",
        "after",
        "signal",
        "weak",
        "north",
        "ridge",
        "data",
        "lost",
        "for",
        "hours",
        "until",
        "firmware",
        "restarted",
        "calibration",
    ];
    let mut words = format!("Note {i} of the log:");
    let mut state = i as u64 * 2_654_435_761 + 12_345;
    while words.len() < 550 {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        words.push(' ');
        words.push_str(WORDS[(state >> 33) as usize % WORDS.len()]);
    }
    words.push('.');
    words
}
