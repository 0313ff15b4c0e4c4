//! `elf.toml`: its settings and their types.
//!
//! `config/read.rs` has the defaults and the checks, and reports every error in a file at once.
//!
//! `docs/inside/architecture.md` says how to add one.

mod bm25;
mod chunking;
mod clear_text;
mod document;
mod dsn;
mod error;
mod paths;
mod read;
mod section;
mod sources;
mod suggestion;
#[cfg(test)]
mod tests;
mod value;

pub use bm25::{Bm25Options, NO_LANGUAGE, Tokenizer};
pub use dsn::Dsn;
pub use error::{ConfigError, Problem};
pub use read::settings;
pub use sources::{Part, Source, Template, Text};

pub use elf_chunk::Boundaries;

use crate::metadata::Declared;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// Everything that `elf.toml` says, checked.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
#[expect(missing_docs, reason = "a section per field")]
pub struct Config {
    pub service: Service,
    pub storage: Storage,
    pub providers: Providers,
    pub chunking: Chunking,
    pub worker: Worker,
    pub outbox: Outbox,
    pub search: Search,
    pub quality: Quality,
    pub metadata: Declared,
    pub sources: Vec<Source>,
    /// A sentence for each key of the file that has no effect beside the others.
    #[serde(skip)]
    pub without_effect: Vec<String>,
}

impl Config {
    /// The settings in effect, defaults included, as a file; secrets as `***`.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("every setting has a form in TOML")
    }

    /// One sentence for each setting that does not do what its author may believe.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = self.clear_text_warnings();
        let dsn = Dsn::parse(self.storage.postgres.dsn.expose());
        let without_effect = dsn.map(|dsn| dsn.without_effect).unwrap_or_default();
        warnings.extend(without_effect.into_iter().map(|parameter| {
            format!("storage.postgres.dsn: {parameter} has no effect on ELF, remove it")
        }));
        warnings.extend(self.without_effect.iter().cloned());
        warnings
    }

    /// The source of the tokenizer that counts the tokens of chunks: a Hugging Face repository,
    /// folder or `tokenizer.json`.
    pub fn tokenizer_source(&self) -> &str {
        let model = &self.providers.embedding.model;
        match self.chunking.tokenizer_repo.as_str() {
            // OpenAI's models are not on the hub, but their tokenizer, cl100k_base, is.
            "" if model.starts_with("text-embedding-") => "Xenova/text-embedding-ada-002",
            "" => model,
            repo => repo,
        }
    }
}

/// `[quality]`: golden questions.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Quality {
    /// The folder of the questions. None: none are asked.
    pub folder: Option<String>,
    /// How often one of the workers asks them.
    pub interval_secs: u64,
    /// `[quality.canary]`
    pub canary: Canary,
}

/// `[quality.canary]`: a version that is built answers a share of the searches.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Canary {
    /// The configuration of that version. None: this process takes no part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
    /// The canary ends below so much of the mean relevance of the served version.
    pub min_relevance: f64,
    /// It ends above so many times the errors.
    pub max_errors: f64,
    /// It ends above so many times the median time of a search.
    pub max_latency: f64,
}

/// `[service]`: the process itself.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Service {
    /// Where the admin page, `/metrics`, `/livez` and `/readyz` are served; port 0
    /// takes any free one and logs it.
    pub admin_bind: String,
    /// The admin page requires it to show notes or to change dead letters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admin_token: Option<Secret>,
    /// Where the HTTP API for applications is served; `None` for nowhere. Port 0 takes any free
    /// one and logs it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http_bind: Option<String>,
    /// `error`, `warn`, `info`, `debug`, `trace`, or a filter like
    /// `info,elf::worker=debug`. `RUST_LOG` overrides it.
    pub log_level: String,
    /// Log lines as JSON objects.
    pub log_json: bool,
}

/// `[storage]`: Postgres, which has the notes, and the vector engine, which has the points.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
#[expect(missing_docs, reason = "a section per field")]
pub struct Storage {
    pub postgres: Postgres,
    pub qdrant: Qdrant,
}

/// `[storage.postgres]`
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Postgres {
    /// `postgres://user:password@host:port/database`
    pub dsn: Secret,
    /// How many connections one process opens at most, those included that end a statement.
    pub pool_max_conns: u32,
    /// The type of the columns of vectors; unset, they stay as they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vector_type: Option<VectorType>,
}

/// The type of the columns of vectors in Postgres.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum VectorType {
    /// Four bytes a dimension.
    Vector,
    /// Two bytes a dimension.
    Halfvec,
}

impl VectorType {
    /// Its name in Postgres and in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Vector => "vector",
            Self::Halfvec => "halfvec",
        }
    }
}

/// `[storage.qdrant]`
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Qdrant {
    /// `http://host:6334` (gRPC) for a server, `embedded:DIR` for the engine
    /// in this process.
    pub url: String,
    /// Sent to a server with every request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_key: Option<Secret>,
    /// The alias that applications and ELF read through.
    pub alias: String,
    /// Shards of a new collection; by the server's processors when unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shard_number: Option<u32>,
    /// Copies of each shard of a new collection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replication_factor: Option<u32>,
    /// Copies that must acknowledge a write before it counts as done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_consistency_factor: Option<u32>,
    /// Dense vectors on disk instead of in memory.
    pub on_disk: bool,
    /// The numbers of which dense vectors consist in a new collection.
    pub datatype: Datatype,
    /// How a new collection compresses dense vectors in memory.
    pub quantization: Quantization,
    /// Time limit for one request.
    pub timeout_ms: u64,
    /// The graph of a new collection.
    pub hnsw: Hnsw,
    /// How texts become BM25 vectors. A change requires a rebuild.
    pub bm25: Bm25Options,
}

/// `[storage.qdrant.hnsw]`; the server's defaults when unset.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Hnsw {
    /// Edges of each point in the graph.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub m: Option<u32>,
    /// Neighbours that the engine considers to place a point in the graph.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ef_construct: Option<u32>,
}

/// The numbers of which dense vectors consist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Datatype {
    /// Four bytes a dimension.
    Float32,
    /// Two bytes a dimension.
    Float16,
}

/// How the engine compresses dense vectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Quantization {
    /// Full precision.
    None,
    /// One byte a dimension.
    Scalar,
    /// One bit a dimension.
    Binary,
}

/// `[providers]`
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
#[expect(missing_docs, reason = "a section per field")]
pub struct Providers {
    pub embedding: Embedding,
}

/// `[providers.embedding]`
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Embedding {
    /// The kind of provider.
    pub provider: ProviderKind,
    /// Scheme and host of the server, and the first part of the path if it has one.
    pub api_base: String,
    /// Path of the embeddings endpoint below `api_base`.
    pub path: String,
    /// For `openai` the model's name; for `local` a folder or a repository on
    /// the Hugging Face hub.
    pub model: String,
    /// Floats in a vector; asked of the provider when unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dimensions: Option<usize>,
    /// Sent as a bearer token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_key: Option<Secret>,
    /// Maximum texts in one request.
    pub max_batch_inputs: usize,
    /// Maximum tokens in one request, all texts together.
    pub max_batch_tokens: usize,
    /// Maximum requests in flight at once.
    pub concurrency: usize,
    /// Time limit for one request.
    pub timeout_ms: u64,
    /// Maximum requests in any minute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_per_minute: Option<u32>,
    /// Maximum tokens in any minute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_minute: Option<u32>,
    /// The provider's price of a million tokens in US dollars, for estimates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usd_per_million_tokens: Option<f64>,
    /// Put before every chunk: `passage: ` for E5 models.
    pub document_prefix: String,
    /// Put before every query: `query: ` for E5 models.
    pub query_prefix: String,
    /// Further fields of a request for notes, such as `input_type`.
    #[serde(skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    pub document_fields: Fields,
    /// Further fields of a request for a query.
    #[serde(skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    pub query_fields: Fields,
    /// Certificates (PEM) of authorities that ELF trusts beside the system's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<String>,
    /// The client certificate (PEM) for a server that requires one…
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_cert_file: Option<String>,
    /// …and its private key (PEM).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_key_file: Option<String>,
    /// Sent with every request.
    #[serde(skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    pub headers: std::collections::BTreeMap<String, Secret>,
}

/// Fields of a JSON object, by their names.
pub type Fields = std::collections::BTreeMap<String, serde_json::Value>;

/// The kind of provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ProviderKind {
    /// Any server that speaks OpenAI's embeddings API.
    Openai,
    /// A BERT-family model in this process.
    Local,
}

/// `[chunking]`
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Chunking {
    /// How the text of a note is split.
    #[serde(flatten)]
    pub settings: elf_chunk::Settings,
    /// How that of a note of such a type is split instead.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub by_type: BTreeMap<String, elf_chunk::Settings>,
    /// What stands before a chunk in what is embedded.
    pub lead: Vec<LeadPart>,
    /// A Hugging Face repository, folder or `tokenizer.json`; empty for the
    /// embedding model's own. See [`Config::tokenizer_source`].
    pub tokenizer_repo: String,
}

/// A part of the lead of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LeadPart {
    /// `memory_notes.title`.
    Title,
    /// The headings above the chunk.
    Headings,
    /// The day of the note's `updated_at`.
    Date,
}

impl Chunking {
    /// Whether a note of this type is left out as a whole.
    pub fn leaves_out(&self, kind: &str, text: &str) -> bool {
        let settings = self.by_type.get(kind).unwrap_or(&self.settings);
        settings.leaves_out(text)
    }

    /// The key that says how large the largest chunk may be, and its tokens.
    pub fn largest(&self) -> (String, usize) {
        let mut largest = ("chunking.max_tokens".to_owned(), self.settings.max_tokens);
        for (kind, settings) in &self.by_type {
            if settings.max_tokens > largest.1 {
                let key = format!("chunking.by_type.{kind}.max_tokens");
                largest = (key, settings.max_tokens);
            }
        }
        largest
    }
}

/// `[worker]`
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Worker {
    /// How long a lease lasts: the notes of a crashed worker wait this long for another worker.
    pub lease_secs: u32,
    /// Failed attempts of a note before it is dead-lettered.
    pub max_attempts: u32,
    /// How often the worker polls for work when no notification comes.
    pub poll_interval_ms: u64,
    /// LISTEN for new work; off behind a PgBouncer in transaction mode.
    pub listen: bool,
    /// Notes claimed at once.
    pub batch_notes: usize,
    /// Most batches in flight at once.
    pub concurrency: usize,
    /// Maximum UTF-8 bytes of a note's text; a longer note is dead-lettered.
    pub max_note_bytes: u64,
    /// While the provider cannot make the vectors of a note, index its words, so that it is found
    /// by keyword.
    pub bm25_first: bool,
    /// How often one of the workers compares the index with Postgres and repairs it; 0 is never.
    pub verify_interval_secs: u64,
    /// How long a stopping worker waits for work in flight.
    pub grace_secs: u32,
    /// Delay before the first retry of a failed note; it doubles with every retry.
    pub backoff_base_ms: u64,
    /// Maximum delay between two retries.
    pub backoff_max_ms: u64,
}

/// `[outbox]`
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Outbox {
    /// How long done rows are kept; 0 deletes them at once.
    pub retention_secs: u64,
}

/// `[search]`
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Search {
    /// How the scores by meaning and by keyword become one.
    pub fusion: FusionMethod,
    /// Candidates of each ranking, at least.
    pub candidates: usize,
    /// Neighbours that the engine considers while it searches the graph; the server's default when unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hnsw_ef: Option<u32>,
    /// Whether the engine compares the query with every vector instead.
    pub exact: bool,
    /// How long a search waits for the vector of its query. Without it, a search finds notes by
    /// keyword alone.
    pub query_timeout_ms: u64,
    /// How much relevance weighs against difference from the notes before: 1 is relevance alone
    /// (maximal marginal relevance).
    pub mmr_lambda: f64,
    /// Notes of less relevance are left out, 0 to 1.
    pub min_relevance: f64,
    /// How many days the records of searches over the HTTP API are kept; 0 records none.
    pub trace_days: u32,
    /// Puts the best notes in order.
    pub rerank: Option<Rerank>,
}

/// `[search.rerank]`
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Rerank {
    /// Where the requests go, for example `http://127.0.0.1:8080/rerank`.
    pub url: String,
    /// The form of the requests.
    pub api: RerankApi,
    /// The name of the model, for servers with several. For `local`, a folder or a repository on
    /// the Hugging Face hub.
    pub model: String,
    /// Sent as `Authorization: Bearer …`.
    pub api_key: Option<Secret>,
    /// How long a search waits. Without an answer, the fused order stays.
    pub timeout_ms: u64,
    /// How many of the best notes are ranked.
    pub notes: usize,
}

/// The form of the requests to a reranker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RerankApi {
    /// `{model, query, documents}`: Cohere, Jina, Voyage, vLLM.
    Cohere,
    /// `{query, texts, truncate}`: Text Embeddings Inference.
    Tei,
    /// None: `model` is computed in this process.
    Local,
}

/// How the scores by meaning and by keyword become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FusionMethod {
    /// Standardised scores; the ranking whose best stands out further weighs more.
    Adaptive,
    /// Standardised scores, half and half (distribution-based score fusion).
    Dbsf,
    /// Reciprocal ranks.
    Rrf,
}

/// A key of `elf.toml`.
#[derive(Debug, Clone)]
pub struct Setting {
    /// Dotted: `worker.lease_secs`.
    pub key: String,
    /// As TOML; `None` for a key without a default.
    pub default: Option<String>,
    /// What the value may be: a range, words, or a type.
    pub allowed: String,
}

/// A value that is never printed. The file has it as `env:NAME`, `file:PATH` or in plain text.
#[derive(Clone, PartialEq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a value that is resolved already.
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    /// The value, for the one place that sends it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("\"***\"")
    }
}

impl serde::Serialize for Secret {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str("***")
    }
}

/// Whether a `HOST` or `HOST:PORT` is a loopback address, which only this machine reaches.
pub fn is_loopback(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        _ if host.parse::<std::net::Ipv6Addr>().is_ok() => host,
        // An IPv6 address without a port ends in a bracket.
        Some((name, port)) if !port.ends_with(']') => name,
        _ => host,
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost")
        || name
            .parse()
            .is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
}

impl Worker {
    /// How long a lease lasts.
    pub fn lease(&self) -> Duration {
        Duration::from_secs(self.lease_secs.into())
    }
}

/// The path of the configuration: `-c FILE`, else `ELF_CONFIG`, else `./elf.toml`.
pub fn path_or_default(given: Option<PathBuf>) -> PathBuf {
    given
        .or_else(|| std::env::var_os("ELF_CONFIG").map(PathBuf::from))
        .unwrap_or_else(|| PathBuf::from("elf.toml"))
}
