//! What ELF promises, held against a real Postgres and a real vector engine. One
//! program, because linking it takes longer than running it.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod admin;
mod cli;
mod crash;
mod dashboards;
mod deploy;
mod embedding;
mod page;
mod patience;
mod plans;
mod readme;
mod rebuild;
mod reindex;
mod runbook;
mod schema;
mod support;
mod telemetry;
mod upkeep;
mod verify;
mod worker;
