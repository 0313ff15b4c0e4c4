//! ELF keeps a Qdrant index provably in step with notes that an application
//! writes to Postgres. Postgres is the truth; Qdrant is derived from it.
//!
//! The way of a note: the application commits, and a trigger (`sql/tables/memory_notes.sql`) writes an
//! outbox row. The [`worker`] claims it ([`store`]), splits the text into chunks ([`chunk`]),
//! gets their vectors ([`embed`]), commits both to Postgres ([`store`]), upserts the points
//! ([`index`]), then deletes the outbox row. A search asks the index, then revalidates each hit
//! in Postgres.
//!
//! Postgres records what is served. [`reindex`] and [`rebuild`] change it
//! ([`store::Store::serve_version`], [`store::Store::finish_rebuild`]). The [`serving`] checks
//! it and reconciles the alias. `docs/inside/architecture.md` has the way of a note file by file.
//!
//! Where to add things:
//!
//! - a provider: as the doc of [`embed`] says
//! - a vector engine: an implementation of [`index::VectorIndex`], an arm in
//!   `index/connect.rs`, its URL in `qdrant_url` of `config/read.rs`, and a bench in
//!   `tests/index_contract/setup.rs`
//! - a metric, a setting or a command: as `docs/inside/architecture.md` says
//! - a change of the schema: as the header of `store/migrations.rs` says

// What a note is, and what the operator sets.
pub mod config;
pub mod metadata;
pub mod note;

// The parts on its way: text, chunks, vectors, rows, points.
pub mod chunk;
pub mod embed;
mod hub;
pub mod index;
pub mod store;

// What is served, and who keeps it in step.
pub mod rebuild;
pub mod reindex;
pub mod serving;
pub mod sources;
pub mod verify;
pub mod worker;

// Who asks and who watches.
pub mod canary;
pub mod cli;
mod eval;
mod http;
mod observe;
pub mod search;
pub mod telemetry;

// What several of them use.
mod backoff;
mod error_class;
mod lock;
mod shares;
mod unicode;

/// The chunker allocates for each token of a BPE or Unigram tokenizer: with glibc's allocator it
/// takes twice as long. Here, so that tests and benches run with it too.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
