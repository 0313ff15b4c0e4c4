//! What ELF promises, held against a real Postgres and a real vector engine. One
//! program, because linking it takes longer than running it.

#![expect(clippy::unwrap_used, reason = "a test may panic")]
#![expect(
    clippy::large_futures,
    reason = "a test polls them on a thread of its own"
)]

mod access;
mod admin;
mod api_page;
mod availability;
mod blame;
mod cases;
mod chunking;
mod cli;
mod clients;
mod clock;
mod crash;
mod dashboards;
mod deadlocks;
mod deploy;
mod embedding;
mod http_api;
mod index_home;
mod late;
mod locks;
mod lost_transactions;
mod mcp;
mod metadata;
mod migrations;
mod own_cuts;
mod page;
mod plans;
mod privileges;
mod readme;
mod real_size;
mod rebuild;
mod reference;
mod reindex;
mod rerank;
mod runbook;
mod schema;
mod search;
mod search_page;
mod slices;
mod sources;
mod support;
mod telemetry;
mod tls;
mod unanswered;
mod upkeep;
mod verify;
#[cfg(feature = "local")]
mod weights;
mod worker;
