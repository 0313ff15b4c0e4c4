//! `elf.toml`: what can be set, what it is when it is not set.
//!
//! Reading a file, with every error in it at once, is `config/read.rs`.

mod bm25;
mod clear_text;
mod error;
mod read;
mod section;
mod suggestion;
#[cfg(test)]
mod tests;
mod value;

pub use bm25::{Bm25Options, NO_LANGUAGE};
pub use error::{ConfigError, Problem};

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
}

impl Config {
    /// The settings in effect, defaults included, as a file; secrets as `***`.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("every setting has a form in TOML")
    }

    /// Where the tokenizer comes from that chunks are counted with: a Hugging
    /// Face repository, folder or `tokenizer.json`.
    pub fn tokenizer_source(&self) -> &str {
        let model = &self.providers.embedding.model;
        match self.chunking.tokenizer_repo.as_str() {
            // OpenAI's models are on no hub. They all count in cl100k_base, which is there.
            "" if model.starts_with("text-embedding-") => "Xenova/text-embedding-ada-002",
            "" => model,
            repo => repo,
        }
    }
}

/// `[service]`: the process itself.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Service {
    /// Where the admin page, `/metrics`, `/livez` and `/readyz` are served; port 0
    /// takes any free one and logs it.
    pub admin_bind: String,
    /// Asked of whoever looks at notes on the admin page, or changes anything there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admin_token: Option<Secret>,
    /// `error`, `warn`, `info`, `debug`, `trace`, or a filter like
    /// `info,elf::worker=debug`. `RUST_LOG` wins.
    pub log_level: String,
    /// Log lines as JSON objects.
    pub log_json: bool,
}

/// `[storage]`: where notes are read and points are written.
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
    /// Connections of one process at most.
    pub pool_max_conns: u32,
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
    /// Shards of a new collection; the server's default when unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shard_number: Option<u32>,
    /// Copies of each shard of a new collection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replication_factor: Option<u32>,
    /// Copies that must have a write before it counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_consistency_factor: Option<u32>,
    /// Dense vectors on disk instead of in memory.
    pub on_disk: bool,
    /// How a new collection compresses dense vectors in memory.
    pub quantization: Quantization,
    /// Longest wait for one request.
    pub timeout_ms: u64,
    /// How texts become BM25 vectors. Changing it takes a new collection.
    pub bm25: Bm25Options,
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
    /// Who embeds.
    pub provider: Provider,
    /// Scheme, host and, if need be, the first part of the path.
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
    /// Texts in one request.
    pub max_batch_inputs: usize,
    /// Tokens in one request, all texts together.
    pub max_batch_tokens: usize,
    /// Requests in flight at once.
    pub concurrency: usize,
    /// Longest wait for one request.
    pub timeout_ms: u64,
    /// Requests sent in any minute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_per_minute: Option<u32>,
    /// Tokens sent in any minute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_minute: Option<u32>,
    /// What the provider charges for a million tokens, in US dollars: for estimates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usd_per_million_tokens: Option<f64>,
    /// Put before every chunk: `passage: ` for E5 models.
    pub document_prefix: String,
    /// Put before every query: `query: ` for E5 models.
    pub query_prefix: String,
    /// Certificates (PEM) of authorities that are trusted beside the system's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<String>,
    /// What ELF shows a server that asks who it is: a certificate (PEM)…
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_cert_file: Option<String>,
    /// …and its private key (PEM).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_key_file: Option<String>,
    /// Sent with every request.
    #[serde(skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    pub headers: std::collections::BTreeMap<String, Secret>,
}

/// Who embeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Provider {
    /// Any server that speaks OpenAI's embeddings API.
    Openai,
    /// A BERT-family model in this process.
    Local,
}

/// `[chunking]`
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Chunking {
    /// Off: one chunk a note, where it fits `max_tokens`.
    pub enabled: bool,
    /// Tokens in a chunk as it is sent: prefix and special tokens included.
    pub max_tokens: usize,
    /// Tokens at the end of a chunk that begin the next one again, at most.
    pub overlap_tokens: usize,
    /// A Hugging Face repository, folder or `tokenizer.json`; empty for the
    /// embedding model's own. See [`Config::tokenizer_source`].
    pub tokenizer_repo: String,
}

/// `[worker]`
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Worker {
    /// How long a crashed worker's notes wait for the next one.
    pub lease_secs: u32,
    /// Failures of a note before it is a dead letter.
    pub max_attempts: u32,
    /// How often to look for work when no notification comes.
    pub poll_interval_ms: u64,
    /// LISTEN for new work; off behind a PgBouncer in transaction mode.
    pub listen: bool,
    /// Notes claimed at once.
    pub batch_notes: usize,
    /// Batches in flight at once.
    pub concurrency: usize,
    /// UTF-8 bytes of a note's text at most; a longer note is dead-lettered.
    pub max_note_bytes: u64,
    /// How often one of the workers compares the index with Postgres and mends it; 0 is
    /// never.
    pub verify_interval_secs: u64,
    /// How long a stop waits for work in flight.
    pub grace_secs: u32,
    /// Wait before the first retry of a failed note.
    pub backoff_base_ms: u64,
    /// Longest wait between two retries.
    pub backoff_max_ms: u64,
}

/// `[outbox]`
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Outbox {
    /// How long done rows are kept; 0 deletes them at once.
    pub retention_secs: u64,
}

/// A value that is never printed. Written `env:NAME`, `file:PATH` or plainly.
#[derive(Clone, PartialEq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a value that is known already.
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

/// Whether a `HOST` or `HOST:PORT` is this machine and nobody else's business.
pub fn is_loopback(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
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

/// Where a configuration comes from: `-c FILE`, else `ELF_CONFIG`, else `./elf.toml`.
pub fn path_or_default(given: Option<PathBuf>) -> PathBuf {
    given
        .or_else(|| std::env::var_os("ELF_CONFIG").map(PathBuf::from))
        .unwrap_or_else(|| PathBuf::from("elf.toml"))
}
