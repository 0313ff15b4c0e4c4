//! Shared by the tests.

pub mod api;
pub mod application;
pub mod articles;
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

use std::panic::Location;
use std::time::Duration;

/// Far longer than any wait of a test, so that a test fails instead of hanging.
pub const DEADLINE: Duration = Duration::from_secs(180);

/// Waits until `condition` holds.
#[track_caller]
pub fn eventually<F: Future<Output = bool>>(condition: impl Fn() -> F) -> impl Future<Output = ()> {
    let caller = Location::caller();
    async move {
        let holds = async {
            while !condition().await {
                tokio::task::yield_now().await;
            }
        };
        let in_time = tokio::time::timeout(DEADLINE, holds).await;
        assert!(
            in_time.is_ok(),
            "the condition at {caller} did not hold within {DEADLINE:?}"
        );
    }
}

/// Waits until `text`, such as a scrape of `/metrics`, has every one of `words`.
#[track_caller]
pub fn eventually_has<F: Future<Output = String>>(
    text: impl Fn() -> F,
    words: &[&str],
) -> impl Future<Output = ()> {
    let caller = Location::caller();
    async move {
        let deadline = tokio::time::Instant::now() + DEADLINE;
        loop {
            let text = text().await;
            let Some(missing) = words.iter().find(|word| !text.contains(**word)) else {
                return;
            };
            assert!(
                tokio::time::Instant::now() < deadline,
                "{text}\n{caller} waited for {missing:?} in vain"
            );
            tokio::task::yield_now().await;
        }
    }
}
