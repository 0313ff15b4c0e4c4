//! Several workers on one database: 1, 2 and 4 processes of `elf worker` over the same
//! backlog. Once with an embedding server that answers at once, so that the machine is
//! what limits them, and once with one that lets them wait, as real ones do.
//!
//! The workers are running and idle when the backlog is committed; the time is from that
//! commit to the empty outbox. Postgres (`DATABASE_URL`), Qdrant (`QDRANT_URL`, else the
//! `qdrant` program on the PATH) and the embedding server share the machine with them.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::routing::post;
use axum::{Json, Router};
use base64::Engine;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use uuid::Uuid;

#[path = "../tests/support/qdrant_server.rs"]
mod qdrant_server;

const WORKERS: [usize; 3] = [1, 2, 4];
const ROUNDS: usize = 3;
const DIM: usize = 384;

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
        notes: 2400,
    },
];

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

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
            let line: Vec<String> = rates.iter().map(|r| format!("{:.0}", r[round - 1])).collect();
            println!("  round {round}: {} notes/s with 1, 2, 4 workers", line.join(", "));
        }
        for (i, workers) in WORKERS.into_iter().enumerate() {
            let mut ratios: Vec<f64> = rates[i].iter().zip(&rates[0]).map(|(n, one)| n / one).collect();
            ratios.sort_by(f64::total_cmp);
            println!("  {workers} / 1: {:.2}", ratios[ROUNDS / 2]);
        }
    }
    Ok(())
}

/// Notes per second of so many workers, from the commit to the empty outbox.
async fn drained(provider: Provider, workers: usize, qdrant: &str) -> Result<f64> {
    let folder = tempfile::tempdir()?;
    let name = format!("elf_bench_{}", Uuid::new_v4().simple());
    let admin = std::env::var("DATABASE_URL")?;
    let mut server = PgConnection::connect(&admin).await?;
    execute(&mut server, format!("create database {name}")).await?;
    let mut dsn = reqwest::Url::parse(&admin)?;
    dsn.set_path(&name);
    let api = serve(provider.latency).await?;
    let model = std::env::var("ELF_TEST_MODEL").unwrap_or(".elf/models/all-MiniLM-L6-v2".into());
    let model = std::fs::canonicalize(model)?;
    std::fs::write(
        folder.path().join("elf.toml"),
        format!(
            "[service]\nadmin_bind = \"127.0.0.1:0\"\n[storage.postgres]\ndsn = {:?}\n\
             [storage.qdrant]\nurl = {qdrant:?}\ncollection = {name:?}\n\
             [providers.embedding]\napi_base = {api:?}\nmodel = \"bench\"\nmax_batch_inputs = {}\n\
             concurrency = {}\n[chunking]\ntokenizer_repo = {:?}\n[worker]\nverify_interval_secs = 0\n",
            dsn.as_str(),
            provider.inputs,
            provider.requests_in_flight,
            model.display().to_string(),
        ),
    )?;
    let migrated = elf(folder.path(), "migrate").stdout(Stdio::null()).status()?;
    assert!(migrated.success(), "the schema is there");
    let mut running = Vec::new();
    for _ in 0..workers {
        running.push(Worker::start(folder.path())?);
    }

    let mut db = PgConnection::connect(dsn.as_str()).await?;
    let texts: Vec<String> = (0..provider.notes).map(text).collect();
    sqlx::query(
        "insert into memory_notes (tenant_id, project_id, agent_id, scope, type, text)
         select 't', 'p', 'a', 's', 'n', t from unnest($1::text[]) t",
    )
    .bind(&texts)
    .execute(&mut db)
    .await?;
    let began = Instant::now();
    let left = "select exists (select from indexing_outbox)";
    while sqlx::query_scalar::<_, bool>(left).fetch_one(&mut db).await? {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let took = began.elapsed();
    let indexed: i64 = sqlx::query_scalar("select count(*) from note_index_state where chunk_count = 1")
        .fetch_one(&mut db)
        .await?;
    assert_eq!(indexed, provider.notes as i64, "one chunk a note");

    drop(running);
    drop_collection(qdrant, &format!("{name}__1")).await?;
    execute(&mut server, format!("drop database {name} with (force)")).await?;
    Ok(provider.notes as f64 / took.as_secs_f64())
}

async fn execute(connection: &mut PgConnection, statement: String) -> Result<()> {
    sqlx::raw_sql(AssertSqlSafe(statement)).execute(connection).await?;
    Ok(())
}

async fn drop_collection(url: &str, name: &str) -> Result<()> {
    let client = qdrant_client::Qdrant::from_url(url)
        .skip_compatibility_check()
        .build()?;
    client.delete_collection(name).await?;
    Ok(())
}

fn elf(folder: &Path, command: &str) -> Command {
    let mut elf = Command::new(env!("CARGO_BIN_EXE_elf"));
    elf.arg(command).current_dir(folder);
    for name in ["ELF_CONFIG", "RUST_LOG"] {
        elf.env_remove(name);
    }
    elf
}

/// A process of its own, killed when this is dropped.
struct Worker(Child);

impl Worker {
    /// Returns when it is idle.
    fn start(folder: &Path) -> Result<Self> {
        let mut child = elf(folder, "worker")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        let mut log = BufReader::new(child.stderr.take().ok_or("no stderr")?).lines();
        let worker = Self(child);
        loop {
            let line = log.next().ok_or("a worker ended early")??;
            if line.contains(" working ") {
                break;
            }
        }
        // Somebody has to read what it says, or it would stop at a full pipe.
        std::thread::spawn(move || log.for_each(drop));
        Ok(worker)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An embedding server; its URL. It ends with the process.
async fn serve(latency: Duration) -> Result<String> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    let app = Router::new()
        .route("/v1/embeddings", post(embed))
        .with_state(latency);
    tokio::spawn(async move { axum::serve(listener, app).await });
    Ok(url)
}

async fn embed(State(latency): State<Duration>, Json(request): Json<Value>) -> Json<Value> {
    tokio::time::sleep(latency).await;
    let inputs = request["input"].as_array().map_or(&[][..], Vec::as_slice);
    let data: Vec<Value> = inputs
        .iter()
        .enumerate()
        .map(|(index, text)| json!({ "index": index, "embedding": vector(text.as_str().unwrap_or_default()) }))
        .collect();
    Json(json!({ "data": data, "model": "bench" }))
}

/// Some vector in base64, always the same for the same text.
fn vector(text: &str) -> String {
    let seed = text.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| {
        (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)
    });
    let mut state = seed | 1;
    let mut bytes = Vec::with_capacity(4 * DIM);
    for _ in 0..DIM {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let float = (state >> 40) as f32 / 16_777_216.0 - 0.5;
        bytes.extend(float.to_le_bytes());
    }
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

/// About 560 bytes, different for every `i`.
fn text(i: usize) -> String {
    let mut words = format!("Note {i} of the log:");
    let mut state = i as u64 * 2_654_435_761 + 12_345;
    while words.len() < 550 {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        words.push_str(" word");
        words.push_str(&(state >> 52).to_string());
    }
    words
}
