//! The worker against a real Postgres and a real vector engine. The name of each test is a promise.

mod attempts;
mod bm25_first;
mod claims;
mod convergence;
mod embedding;
mod labels;
mod leases;
mod outbox;
