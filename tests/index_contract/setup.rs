//! Engines to test, points to put in them.

use elf::config::Bm25Options;
use std::future::Future;
use std::io::Write;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use elf::config::{Datatype, Hnsw, Qdrant, Quantization};
use elf::index::{
    Candidate, CollectionInfo, CollectionSpec, CollectionStatus, Filter, NotePayload, Payload,
    Point, Query, StoredPoint, VectorIndex,
};
use elf::note::{Labels, chunk_id};
use uuid::Uuid;

use crate::{components, qdrant_server};

/// Floats in a test vector.
pub const DIM: usize = 4;

/// An engine with a unique name for a collection.
pub struct Bench {
    pub index: Arc<dyn VectorIndex>,
    pub name: String,
}

impl Bench {
    /// Makes the collection.
    pub async fn create(&self) {
        self.index
            .create_collection(&self.name, &spec())
            .await
            .unwrap();
    }

    /// A second name beside the bench's own.
    pub fn other(&self, suffix: &str) -> String {
        format!("{}_{suffix}", self.name)
    }

    pub async fn count(&self, filter: &Filter) -> u64 {
        self.index.count(&self.name, filter).await.unwrap()
    }

    pub async fn all(&self) -> Vec<StoredPoint> {
        self.index
            .scroll(&self.name, None, 1000, true)
            .await
            .unwrap()
    }

    pub async fn search(&self, query: &Query) -> Vec<Candidate> {
        self.index.search(&self.name, query).await.unwrap()
    }
}

type Run = Pin<Box<dyn Future<Output = ()>>>;

/// A promise that a test checks on a bench.
pub trait Promise {
    fn run(self, bench: Bench) -> Run;
}

impl<F: FnOnce(Bench) -> R, R: Future<Output = ()> + 'static> Promise for F {
    fn run(self, bench: Bench) -> Run {
        Box::pin(self(bench))
    }
}

#[cfg(feature = "embedded")]
pub fn on_embedded(promise: impl Promise) {
    let dir = tempfile::tempdir().unwrap();
    run(&format!("embedded:{}", dir.path().display()), promise);
}

/// On a folder that another has open: this one asks it.
#[cfg(feature = "embedded")]
pub fn through_another_process(promise: impl Promise + 'static) {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("embedded:{}", dir.path().display());
    // A runtime of its own, as a process has.
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let opened = runtime.block_on(elf::index::connect(&settings(&url)));
    let holder = opened.unwrap();
    run(&url, async |bench: Bench| {
        let told = bench.index.describe();
        assert!(told.contains("open in process"), "{told}");
        promise.run(bench).await;
    });
    drop(holder);
}

pub fn on_server(promise: impl Promise) {
    if let Some(url) = qdrant_server::url() {
        run(url, promise);
    }
}

fn run(url: &str, promise: impl Promise) {
    let url = url.to_owned();
    block_on(async move {
        let index = elf::index::connect(&settings(&url)).await.unwrap();
        let name = format!("elf_contract_{}", Uuid::new_v4().simple());
        promise
            .run(Bench {
                index: index.clone(),
                name: name.clone(),
            })
            .await;
        for made in [name.clone(), format!("{name}_a"), format!("{name}_b")] {
            index.drop_collection(&made).await.unwrap();
        }
    });
}

pub fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
        .block_on(work)
}

/// What is known of the collection once the engine has done its optimising. It must say so twice:
/// Qdrant's status misses an optimisation that begins while it looks.
pub async fn until_green(index: &dyn VectorIndex, name: &str) -> CollectionInfo {
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut green = false;
    loop {
        let info = index.collection(name).await.unwrap().unwrap();
        let was_green = std::mem::replace(&mut green, info.status == CollectionStatus::Green);
        if was_green && green {
            return info;
        }
        assert!(Instant::now() < deadline, "{name} is still {}", info.status);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Says on stderr, past the test harness's capture, and in `.elf/engines.txt`
/// which engines the suite runs against.
pub fn say_engines() {
    let mut engines = Vec::new();
    if cfg!(feature = "embedded") {
        engines.push("embedded (qdrant-edge 0.7.2)".to_owned());
        engines.push("the same through another process".to_owned());
    }
    if let Some(url) = qdrant_server::url() {
        let index = block_on(async { elf::index::connect(&settings(url)).await.unwrap() });
        engines.push(index.describe());
        components::met("qdrant");
    } else {
        let reason = "there is no qdrant program on the PATH and no QDRANT_URL";
        components::missing("qdrant", "index_contract", reason);
    }
    let line = format!("index contract: ran against {}\n", engines.join(", "));
    std::io::stderr().write_all(line.as_bytes()).unwrap();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(".elf");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("engines.txt"), line).unwrap();
}

pub fn settings(url: &str) -> Qdrant {
    Qdrant {
        url: url.into(),
        api_key: None,
        alias: "notes".into(),
        shard_number: None,
        replication_factor: None,
        write_consistency_factor: None,
        on_disk: true,
        datatype: Datatype::Float32,
        quantization: Quantization::None,
        hnsw: Hnsw::default(),
        bm25: Bm25Options::default(),
        timeout_ms: 30_000,
    }
}

pub fn spec() -> CollectionSpec {
    CollectionSpec {
        dim: DIM,
        bm25: Bm25Options::default(),
        embedding_version: "test".into(),
    }
}

pub fn noon() -> DateTime<Utc> {
    DateTime::from_timestamp(1_709_208_000, 123_456_000).unwrap()
}

/// The note whose number is `n`.
pub fn note(n: u64) -> Uuid {
    Uuid::from_u64_pair(n, 0)
}

/// The first chunk of note `n` at revision 1.
pub fn point(n: u64, vector: [f32; DIM], text: &str) -> Point {
    let note_id = note(n);
    Point {
        payload: Payload {
            chunk_id: chunk_id(note_id, 0),
            chunk_index: 0,
            start_offset: 0,
            end_offset: text.len() as u64,
            note: NotePayload {
                note_id,
                status: "active".into(),
                expires_at: None,
                labels: Labels {
                    tenant_id: "tenant".into(),
                    project_id: "project".into(),
                    agent_id: "agent".into(),
                    scope: "my team".into(),
                    kind: "fact".into(),
                    key: None,
                    source: None,
                    importance: 0.7,
                    confidence: 0.1,
                    updated_at: noon(),
                    fields: Default::default(),
                },
                embedding_version: "test".into(),
                revision: 1,
            },
        },
        vector: Some(vector.to_vec()),
        lead: String::new(),
        text: text.into(),
    }
}

/// The id of the point that [`point`] makes.
pub fn id(n: u64) -> Uuid {
    chunk_id(note(n), 0)
}

pub fn at_revision(revision: i64, mut point: Point) -> Point {
    point.payload.note.revision = revision;
    point
}

/// A vector that differs for each `n`, as far as four floats allow.
pub fn direction(n: u64) -> [f32; DIM] {
    let angle = n as f32 * 0.37;
    [angle.cos(), angle.sin(), (angle * 1.7).cos(), 0.5]
}

pub fn query(vector: [f32; DIM], text: &str) -> Query {
    Query {
        vector: Some(vector.to_vec()),
        words: Some(text.into()),
        filter: Filter::default(),
        candidates: 10,
        ..Query::default()
    }
}

pub fn ids(found: &[Candidate]) -> Vec<Uuid> {
    found.iter().map(|candidate| candidate.chunk_id).collect()
}

/// The ids with a cosine, nearest first.
pub fn by_meaning(found: &[Candidate]) -> Vec<Uuid> {
    best_first(found, |candidate| candidate.dense)
}

/// The ids with a word of the query, best first.
pub fn by_keyword(found: &[Candidate]) -> Vec<Uuid> {
    best_first(found, |candidate| {
        Some(candidate.bm25).filter(|score| *score > 0.0)
    })
}

fn best_first(found: &[Candidate], score: fn(&Candidate) -> Option<f32>) -> Vec<Uuid> {
    let mut scored: Vec<_> = found
        .iter()
        .filter_map(|candidate| Some((score(candidate)?, candidate.chunk_id)))
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0));
    scored.into_iter().map(|(_, id)| id).collect()
}

/// Whether `stored` is `given`, scaled to length 1.
pub fn assert_same_direction(stored: &[f32], given: &[f32]) {
    assert_eq!(stored.len(), given.len());
    let length = given.iter().map(|x| x * x).sum::<f32>().sqrt();
    for (stored, given) in stored.iter().zip(given) {
        let wanted = given / length;
        assert!((stored - wanted).abs() < 1e-5, "{stored} is not {wanted}");
    }
}
