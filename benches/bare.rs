//! The baseline of the worker: it encodes every text once, asks the same provider for the vectors,
//! writes the same rows with COPY, and upserts the same points with a bare client. It has no
//! outbox, no leases, no look-up of known texts, and cannot resume.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use axum::body::Bytes;
use base64::Engine as _;
use elf::chunk::{Chunker, open_tokenizer};
use elf::config::Config;
use elf::index::{self, CollectionSpec};
use elf::note::{TextHash, chunk_id};
use futures::{SinkExt, StreamExt, TryStreamExt, future, stream};
use qdrant_client::qdrant::{
    DocumentBuilder, NamedVectors, PointStruct, UpsertPointsBuilder, Value, Vector,
};
use qdrant_client::{Payload, Qdrant};
use serde::Deserialize;
use tokio::sync::Mutex;
use tokio_postgres::{Client, NoTls};
use uuid::Uuid;

use crate::copy::Copy;
use crate::daemon::Site;
use crate::drain::DIM;
use crate::engine::{self, Engine};
use crate::process::Cpu;
use crate::stand_in::StandIn;
use crate::{Result, stand_in};

const VERSION: &str = "bare";

/// A note and where its chunks are. The baseline gets them for nothing.
pub struct Note {
    pub text: String,
    pub chunks: Vec<Range<usize>>,
}

/// Cuts texts as ELF does on the default settings.
pub async fn cut(texts: Vec<String>) -> Result<Vec<Note>> {
    let config = config("http://unused", "unused")?;
    let model = crate::model()?.display().to_string();
    let tokenizer = Arc::new(open_tokenizer(&model).await?);
    let chunker = Chunker::new(tokenizer, &config.chunking.settings, "")?;
    let cut = |text: String| {
        let chunks = chunker.chunk(&text)?.into_iter().map(|c| c.start..c.end);
        Ok(Note {
            chunks: chunks.collect(),
            text,
        })
    };
    texts.into_iter().map(cut).collect()
}

fn config(url: &str, alias: &str) -> Result<Config> {
    let text = format!(
        "[storage.postgres]\ndsn = \"postgres://unused/unused\"\n\
         [storage.qdrant]\nurl = {url:?}\nalias = {alias:?}\n"
    );
    Ok(Config::parse(&text, "bench", &|_| None)?)
}

/// How the baseline goes about it.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Batches in flight.
    pub lanes: usize,
    /// Chunks in a batch, about.
    pub batch: usize,
}

/// What it does of the whole.
#[derive(Clone, Copy)]
pub struct Parts {
    pub encode: bool,
    pub embed: bool,
    pub copy: bool,
    pub upsert: bool,
}

impl Parts {
    pub const ALL: Self = Self {
        encode: true,
        embed: true,
        copy: true,
        upsert: true,
    };
    pub const NONE: Self = Self {
        encode: false,
        embed: false,
        copy: false,
        upsert: false,
    };
}

/// Chunks per second of the baseline, and its CPU milliseconds a chunk.
pub async fn rate(
    engine: &Engine,
    provider: &StandIn,
    setting: Setting,
    parts: Parts,
    notes: &[Note],
) -> Result<(f64, [f64; 3])> {
    let mut bare = Bare::start(engine, &provider.url, DIM, notes, setting.batch).await?;
    let chunks: usize = notes.iter().map(|note| note.chunks.len()).sum();
    let cpu = Cpu::start(std::process::id())?;
    let took = bare.index(parts, setting.lanes).await?;
    let cpu_ms = cpu.millis_each(chunks)?;
    bare.end().await?;
    Ok((chunks as f64 / took, cpu_ms))
}

/// A database with the notes and an empty collection.
pub struct Bare {
    site: Site,
    serving: Arc<Storage>,
    batches: Vec<Batch>,
}

/// Notes that go together.
#[derive(Default)]
struct Batch {
    texts: Vec<String>,
    chunks: Vec<Chunk>,
}

struct Storage {
    /// Connections that no batch uses.
    postgres: Mutex<Vec<Client>>,
    dsn: String,
    client: Qdrant,
    collection: String,
    options: HashMap<String, Value>,
    http: reqwest::Client,
    embeddings: String,
    dim: usize,
    tokenizer: tokenizers::Tokenizer,
}

/// A chunk on its way.
struct Chunk {
    note: Uuid,
    index: u32,
    range: Range<usize>,
    text: String,
    /// The last one of its note.
    ends: bool,
}

impl Bare {
    pub async fn start(
        engine: &Engine,
        provider: &str,
        dim: usize,
        notes: &[Note],
        batch: usize,
    ) -> Result<Self> {
        let mut site = Site::start(&engine.url, provider, "").await?;
        let texts: Vec<String> = notes.iter().map(|note| note.text.clone()).collect();
        let ids = site.insert(&texts).await?;
        let collection = format!("{}_bare", site.name);
        let config = config(&engine.url, &site.name)?;
        let bm25 = config.storage.qdrant.bm25.clone();
        let spec = CollectionSpec {
            dim,
            bm25: bm25.clone(),
            embedding_version: VERSION.into(),
        };
        // The collection and its payload indexes are ELF's. What is measured is not.
        let elf = index::connect(&config.storage.qdrant).await?;
        elf.create_collection(&collection, &spec).await?;
        let serving = Storage {
            postgres: Mutex::default(),
            dsn: site.dsn.clone(),
            client: engine::client(&engine.url)?,
            collection,
            options: engine::bm25_options(&bm25)?,
            http: reqwest::Client::new(),
            embeddings: format!("{provider}/v1/embeddings"),
            dim,
            tokenizer: plain(&std::fs::read(crate::tokenizer("minilm")?)?)?,
        };
        let mut batches = vec![Batch::default()];
        for (id, note) in ids.iter().zip(notes) {
            let mut last = batches.pop().unwrap_or_default();
            last.texts.push(note.text.clone());
            last.chunks.extend(chunks(*id, note));
            let is_full = last.chunks.len() >= batch;
            batches.push(last);
            if is_full {
                batches.push(Batch::default());
            }
        }
        batches.retain(|batch| !batch.chunks.is_empty());
        Ok(Self {
            site,
            serving: Arc::new(serving),
            batches,
        })
    }

    /// Seconds for all notes.
    pub async fn index(&mut self, parts: Parts, lanes: usize) -> Result<f64> {
        let batches = std::mem::take(&mut self.batches);
        let began = Instant::now();
        stream::iter(batches)
            .map(|batch| {
                let serving = self.serving.clone();
                tokio::spawn(async move { serving.index(batch, parts).await })
            })
            .buffer_unordered(lanes)
            .map(|ended| ended?)
            .try_collect::<Vec<()>>()
            .await?;
        Ok(began.elapsed().as_secs_f64())
    }

    /// Seconds of each of the next batches: a commit and then an upsert, with the vectors at hand.
    pub async fn one_by_one(&mut self, count: usize) -> Result<Vec<f64>> {
        let mut took = Vec::new();
        for _ in 0..count {
            let batch = self.batches.pop().ok_or("no notes are left")?;
            let vectors = [stand_in::vector(took.len() as u64, self.serving.dim)];
            let began = Instant::now();
            self.serving.copy(&batch.chunks, &vectors).await?;
            self.serving.upsert(&batch.chunks, &vectors).await?;
            took.push(began.elapsed().as_secs_f64());
        }
        Ok(took)
    }

    pub async fn end(self) -> Result<()> {
        self.serving
            .client
            .delete_collection(&self.serving.collection)
            .await?;
        self.serving.postgres.lock().await.clear();
        self.site.end().await
    }
}

fn chunks(note_id: Uuid, note: &Note) -> impl Iterator<Item = Chunk> {
    let count = note.chunks.len();
    note.chunks
        .iter()
        .enumerate()
        .map(move |(index, range)| Chunk {
            note: note_id,
            index: index as u32,
            range: range.clone(),
            text: note.text[range.clone()].to_owned(),
            ends: index + 1 == count,
        })
}

impl Storage {
    async fn index(self: Arc<Self>, batch: Batch, parts: Parts) -> Result<()> {
        if parts.encode {
            let serving = self.clone();
            tokio::task::spawn_blocking(move || serving.encode(&batch.texts)).await??;
        }
        let chunks = batch.chunks;
        let vectors = match parts.embed {
            true => self.embed(&chunks).await?,
            false => chunks
                .iter()
                .map(|chunk| stand_in::vector_of(&chunk.text, self.dim))
                .collect(),
        };
        // Neither store has to wait for the other one here.
        let copy = async {
            match parts.copy {
                true => self.copy(&chunks, &vectors).await,
                false => Ok(()),
            }
        };
        let upsert = async {
            match parts.upsert {
                true => self.upsert(&chunks, &vectors).await,
                false => Ok(()),
            }
        };
        future::try_join(copy, upsert).await?;
        Ok(())
    }

    fn encode(&self, texts: &[String]) -> Result<()> {
        for text in texts {
            self.tokenizer.encode(text.as_str(), false)?;
        }
        Ok(())
    }

    /// In requests of 256 texts, one after the other: other batches ask meanwhile.
    async fn embed(&self, chunks: &[Chunk]) -> Result<Vec<Vec<f32>>> {
        #[derive(Deserialize)]
        struct Answer<'a> {
            #[serde(borrow)]
            data: Vec<Datum<'a>>,
        }
        #[derive(Deserialize)]
        struct Datum<'a> {
            embedding: &'a str,
        }
        let mut vectors = Vec::with_capacity(chunks.len());
        for part in chunks.chunks(256) {
            let input: Vec<&str> = part.iter().map(|chunk| chunk.text.as_str()).collect();
            let body = serde_json::json!({
                "model": "bench", "input": input, "encoding_format": "base64",
            });
            let answer = self.http.post(&self.embeddings).json(&body).send().await?;
            let answer = answer.error_for_status()?.bytes().await?;
            for datum in serde_json::from_slice::<Answer<'_>>(&answer)?.data {
                let bytes = base64::engine::general_purpose::STANDARD.decode(datum.embedding)?;
                let (floats, _) = bytes.as_chunks::<4>();
                vectors.push(
                    floats
                        .iter()
                        .map(|float| f32::from_le_bytes(*float))
                        .collect(),
                );
            }
        }
        Ok(vectors)
    }

    async fn copy(&self, chunks: &[Chunk], vectors: &[Vec<f32>]) -> Result<()> {
        let (mut rows, mut of_chunks, mut of_notes) = (Copy::new(), Copy::new(), Copy::new());
        let mut sum = vec![0.0; self.dim];
        for (chunk, vector) in chunks.iter().zip(vectors) {
            let id = chunk_id(chunk.note, chunk.index);
            rows.row(9)
                .field(id.as_bytes())
                .field(chunk.note.as_bytes())
                .field(&(chunk.index as i32).to_be_bytes())
                .field(&(chunk.range.start as i32).to_be_bytes())
                .field(&(chunk.range.end as i32).to_be_bytes())
                .field(chunk.text.as_bytes())
                .field(&TextHash::of(&chunk.text).0)
                .field(VERSION.as_bytes())
                .field(&1i64.to_be_bytes());
            of_chunks.vector(id, VERSION, vector);
            sum.iter_mut()
                .zip(vector)
                .for_each(|(sum, float)| *sum += float);
            if chunk.ends {
                let chunks = (chunk.index + 1) as f32;
                sum.iter_mut().for_each(|sum| *sum /= chunks);
                of_notes.vector(chunk.note, VERSION, &sum);
                sum.fill(0.0);
            }
        }
        let mut postgres = self.connection().await?;
        let transaction = postgres.transaction().await?;
        for (statement, copy) in [
            (
                "copy memory_note_chunks (chunk_id, note_id, chunk_index, start_offset, end_offset, text,
                                          text_sha256, embedding_version, revision)
                 from stdin (format binary)",
                rows,
            ),
            (
                "copy note_chunk_embeddings (chunk_id, embedding_version, embedding_dim, vec)
                 from stdin (format binary)",
                of_chunks,
            ),
            (
                "copy note_embeddings (note_id, embedding_version, embedding_dim, vec)
                 from stdin (format binary)",
                of_notes,
            ),
        ] {
            let mut copying = Box::pin(transaction.copy_in(statement).await?);
            copying.send(Bytes::from(copy.end())).await?;
            copying.close().await?;
        }
        transaction.commit().await?;
        self.postgres.lock().await.push(postgres);
        Ok(())
    }

    async fn connection(&self) -> Result<Client> {
        if let Some(unused) = self.postgres.lock().await.pop() {
            return Ok(unused);
        }
        let (client, connection) = tokio_postgres::connect(&self.dsn, NoTls).await?;
        tokio::spawn(connection);
        Ok(client)
    }

    async fn upsert(&self, chunks: &[Chunk], vectors: &[Vec<f32>]) -> Result<()> {
        let points: Vec<PointStruct> = chunks
            .iter()
            .zip(vectors)
            .map(|(chunk, vector)| self.point(chunk, vector.clone()))
            .collect();
        self.client
            .upsert_points(UpsertPointsBuilder::new(&self.collection, points).wait(true))
            .await?;
        Ok(())
    }

    fn point(&self, chunk: &Chunk, vector: Vec<f32>) -> PointStruct {
        let id = chunk_id(chunk.note, chunk.index).to_string();
        let document = DocumentBuilder::new(chunk.text.as_str(), "qdrant/bm25")
            .options(self.options.clone())
            .build();
        let vectors = NamedVectors::default()
            .add_vector("dense", Vector::new_dense(vector))
            .add_vector("bm25", document);
        let payload: [(&str, Value); 16] = [
            ("note_id", chunk.note.to_string().into()),
            ("chunk_id", id.clone().into()),
            ("chunk_index", i64::from(chunk.index).into()),
            ("start_offset", (chunk.range.start as i64).into()),
            ("end_offset", (chunk.range.end as i64).into()),
            ("status", "active".into()),
            ("tenant_id", "t".into()),
            ("project_id", "p".into()),
            ("agent_id", "a".into()),
            ("scope", "s".into()),
            ("type", "n".into()),
            ("updated_at", "2026-11-25T00:00:00.000000Z".into()),
            ("importance", 0.5.into()),
            ("confidence", 1.0.into()),
            ("embedding_version", VERSION.into()),
            ("revision", 1.into()),
        ];
        let payload: HashMap<String, Value> =
            payload.map(|(name, value)| (name.to_owned(), value)).into();
        PointStruct::new(id, vectors, Payload::from(payload))
    }
}

/// A tokenizer as its file says, without padding and truncation.
pub fn plain(json: &[u8]) -> Result<tokenizers::Tokenizer> {
    let mut tokenizer = tokenizers::Tokenizer::from_bytes(json)?;
    tokenizer.with_padding(None).with_truncation(None)?;
    Ok(tokenizer)
}
