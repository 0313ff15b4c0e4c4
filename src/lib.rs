//! ELF keeps a Qdrant index provably in step with notes that an application
//! writes to Postgres. Postgres is the truth; Qdrant is derived from it.
//!
//! The way of a note: the application commits, and a trigger (`sql/migrations/`) writes an
//! outbox row. The [`worker`] claims it ([`store`]), splits the text into chunks ([`chunk`]),
//! gets their vectors ([`embed`]), commits both to Postgres ([`store`]) and upserts the points
//! ([`index`]). The [`registry`] holds which version, collections and alias are served.

mod backoff;
pub mod chunk;
pub mod cli;
pub mod config;
pub mod embed;
mod error_class;
mod http;
mod hub;
pub mod index;
pub mod note;
mod observe;
pub mod rebuild;
pub mod registry;
pub mod reindex;
mod search;
pub mod store;
pub mod telemetry;
pub mod verify;
pub mod worker;
