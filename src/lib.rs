//! ELF keeps a Qdrant index provably in step with notes that an application
//! writes to Postgres. Postgres is the truth; Qdrant is derived from it.
//!
//! A note passes through the modules in this order: the application's row becomes outbox row
//! ([`store`]), chunks ([`chunk`]), vectors ([`embed`]) and points ([`index`]). [`worker`]
//! drives that; [`registry`] knows which version, collections and alias are served.

pub mod backoff;
pub mod chunk;
pub mod cli;
pub mod config;
pub mod embed;
pub mod http;
pub mod hub;
pub mod index;
pub mod note;
pub mod observe;
pub mod rebuild;
pub mod registry;
pub mod reindex;
pub mod search;
pub mod store;
pub mod telemetry;
pub mod verify;
pub mod worker;
