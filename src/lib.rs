//! ELF keeps a Qdrant index provably in step with notes that an application
//! writes to Postgres. Postgres is the truth; Qdrant is derived from it.
//!
//! The way of a note: the application commits, and a trigger (`sql/migrations/`) writes an
//! outbox row. The [`worker`] claims it ([`store`]), splits the text into chunks ([`chunk`]),
//! gets their vectors ([`embed`]), commits both to Postgres ([`store`]) and upserts the points
//! ([`index`]). The [`registry`] holds which version, collections and alias are served.
//!
//! Where to add things: a provider as the doc of [`embed`] says; a vector engine as an
//! implementation of [`index::VectorIndex`] and an arm in `index/connect.rs`; a metric in
//! `telemetry/catalog.rs`; a command as a file in `cli/` and a variant in `cli/mod.rs`; a
//! setting in `config/`; a change of the schema in `sql/migrations/`.

// What a note is, and what the operator sets.
pub mod config;
pub mod note;

// The parts on its way: text, chunks, vectors, rows, points.
pub mod chunk;
pub mod embed;
mod hub;
pub mod index;
pub mod store;

// What is served, and who keeps it in step.
pub mod rebuild;
pub mod registry;
pub mod reindex;
pub mod verify;
pub mod worker;

// Who asks and who watches.
pub mod cli;
mod eval;
mod http;
mod observe;
pub mod search;
pub mod telemetry;

// What several of them use.
mod backoff;
mod error_class;
