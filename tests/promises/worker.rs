//! The worker against a real Postgres and a real vector engine. Names are promises.

mod attempts;
mod claims;
mod convergence;
mod embedding;
mod leases;
mod outbox;
