//! Shared by the tests.

pub mod api;
pub mod application;
pub mod browser;
pub mod clients;
pub mod compare;
#[path = "../../support/components.rs"]
pub mod components;
pub mod corpus;
pub mod database;
pub mod docs;
pub mod embedding_server;
pub mod harness;
pub mod hooked;
pub mod imports;
pub mod own_postgres;
pub mod pooler;
pub mod prometheus;
#[path = "../../support/proxy.rs"]
pub mod proxy;
pub mod qdrant;
pub mod site;
pub mod standby;
pub mod stock;
pub mod tls;
pub mod town;

use std::time::Duration;

/// Far longer than any wait of a test, so that a test fails instead of hanging.
pub const DEADLINE: Duration = Duration::from_secs(180);

/// Waits until `condition` holds, looking again whenever the database may have changed.
pub async fn eventually<F: Future<Output = bool>>(condition: impl Fn() -> F) {
    let deadline = tokio::time::Instant::now() + DEADLINE;
    while !condition().await {
        assert!(
            tokio::time::Instant::now() < deadline,
            "it did not happen within {DEADLINE:?}"
        );
        tokio::task::yield_now().await;
    }
}
