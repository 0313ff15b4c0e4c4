//! Processes of `elf` on a database of their own, and an embedding server for them.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use axum::extract::State;
use axum::routing::post;
use axum::{Json, Router};
use base64::Engine;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use uuid::Uuid;

pub const DIM: usize = 384;

pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// A database, and a folder with its `elf.toml`.
pub struct Site {
    pub db: PgConnection,
    pub folder: tempfile::TempDir,
    pub name: String,
    index: String,
}

impl Site {
    /// Migrated and empty. The database is also the name of the alias.
    pub async fn start(index: &str, provider: &str, settings: &str) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let name = format!("elf_bench_{}", Uuid::new_v4().simple());
        let admin = std::env::var("DATABASE_URL")?;
        let mut server = PgConnection::connect(&admin).await?;
        execute(&mut server, format!("create database {name}")).await?;
        let mut dsn = reqwest::Url::parse(&admin)?;
        dsn.set_path(&name);
        let model =
            std::env::var("ELF_TEST_MODEL").unwrap_or(".elf/models/all-MiniLM-L6-v2".into());
        let model = std::fs::canonicalize(model)?;
        std::fs::write(
            folder.path().join("elf.toml"),
            format!(
                "[service]\nadmin_bind = \"127.0.0.1:0\"\n[storage.postgres]\ndsn = {:?}\n\
                 [storage.qdrant]\nurl = {index:?}\nalias = {name:?}\n\
                 [chunking]\ntokenizer_repo = {:?}\n[worker]\nverify_interval_secs = 0\n\
                 [providers.embedding]\napi_base = {provider:?}\nmodel = \"bench\"\n{settings}",
                dsn.as_str(),
                model.display().to_string(),
            ),
        )?;
        let migrated = elf(folder.path(), "migrate")
            .stdout(Stdio::null())
            .status()?;
        assert!(migrated.success(), "the schema is there");
        let db = PgConnection::connect(dsn.as_str()).await?;
        Ok(Self {
            db,
            folder,
            name,
            index: index.into(),
        })
    }

    /// Commits notes with these texts.
    pub async fn insert(&mut self, texts: &[String]) -> Result<()> {
        sqlx::query(
            "insert into memory_notes (tenant_id, project_id, agent_id, scope, type, text)
             select 't', 'p', 'a', 's', 'n', t from unnest($1::text[]) t",
        )
        .bind(texts)
        .execute(&mut self.db)
        .await?;
        Ok(())
    }

    /// Returns when the outbox is empty.
    pub async fn wait_until_drained(&mut self) -> Result<()> {
        let left = "select exists (select from indexing_outbox)";
        while sqlx::query_scalar::<_, bool>(left)
            .fetch_one(&mut self.db)
            .await?
        {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    /// Drops the database and the collection.
    pub async fn end(self) -> Result<()> {
        let Self {
            db, name, index, ..
        } = self;
        if index.starts_with("http") {
            let client = qdrant_client::Qdrant::from_url(&index)
                .skip_compatibility_check()
                .build()?;
            client.delete_collection(format!("{name}__1")).await?;
        }
        db.close().await?;
        let mut server = PgConnection::connect(&std::env::var("DATABASE_URL")?).await?;
        execute(&mut server, format!("drop database {name} with (force)")).await
    }
}

/// Executes a statement that has no arguments.
pub async fn execute(connection: &mut PgConnection, statement: String) -> Result<()> {
    sqlx::raw_sql(AssertSqlSafe(statement))
        .execute(connection)
        .await?;
    Ok(())
}

/// `elf <command>` with the `elf.toml` of `folder`.
pub fn elf(folder: &Path, command: &str) -> Command {
    let mut elf = Command::new(env!("CARGO_BIN_EXE_elf"));
    elf.arg(command).current_dir(folder);
    for name in ["ELF_CONFIG", "RUST_LOG"] {
        elf.env_remove(name);
    }
    elf
}

/// A process of its own, killed when this is dropped.
pub struct Worker(Child);

impl Worker {
    /// Returns when it is idle.
    pub fn start(folder: &Path) -> Result<Self> {
        let mut child = elf(folder, "worker")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        let mut log = BufReader::new(child.stderr.take().ok_or("no stderr")?).lines();
        let worker = Self(child);
        loop {
            let line = log.next().ok_or("a worker ended early")??;
            if line.contains(" worker started ") {
                break;
            }
        }
        // The bench reads its output, because a full pipe would stop the worker.
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
pub async fn serve(latency: Duration) -> Result<String> {
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
pub fn text(i: usize) -> String {
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
