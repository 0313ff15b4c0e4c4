//! What ELF promises, held against a real Postgres and a real vector engine. One
//! program, because linking it takes longer than running it.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod cli;
mod crash;
mod dashboards;
mod embedding;
mod readme;
mod rebuild;
mod reindex;
mod schema;
mod support;
mod verify;
mod worker;
