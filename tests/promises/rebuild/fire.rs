//! Rebuilds beside writes at full speed.

use elf::index::{Filter, Query};
use sqlx::Connection;
use tokio_util::sync::CancellationToken;

use super::{assert_nothing_is_left, rebuild};
use crate::support::application::{Application, seed};
use crate::support::articles::Articles;
use crate::support::embedding_server::vector_of;
use crate::support::eventually;
use crate::support::harness::Harness;
use crate::support::qdrant::Qdrant;

/// Changes that each of four applications makes at least.
const CHANGES: usize = 500;
/// Applications wait while the backlog is larger: the test is about changes beside a
/// rebuild, and workers have to index all of them in the end.
const BACKLOG: i64 = 400;

/// Three rebuilds, one after another, while applications write and two workers index.
async fn rebuilt_under_fire(h: Harness) {
    let articles = Articles::start(&h, &mut h.connect().await).await;
    let (seed, stop) = (seed(), CancellationToken::new());
    let mut applications = Vec::new();
    for name in ["north ", "east ", "south ", "west "] {
        let mut application = Application::named(name, &h.database, seed, 5).await;
        let stop = stop.clone();
        applications.push(tokio::spawn(async move {
            let mut changes = 0;
            while changes < CHANGES || !stop.is_cancelled() {
                application.change().await;
                changes += 1;
                if changes % 50 == 0 {
                    while application.count("indexing_outbox").await > BACKLOG {
                        application.db.ping().await.unwrap();
                    }
                }
            }
            changes
        }));
    }
    let workers = [h.work(), h.work()];
    let searching = tokio::spawn(search_until(
        stop.clone(),
        h.pipeline.serving.index.clone(),
        h.pipeline.serving.alias.clone(),
    ));
    // Some notes are indexed before the first rebuild.
    eventually(async || h.count("memory_note_chunks").await > 200).await;
    let mut before = h.collection().await;
    for _ in 0..3 {
        let report = rebuild(&h).await;
        assert_ne!(report.collection, before);
        assert!(report.points > 0);
        before = report.collection;
    }
    stop.cancel();
    let mut changes = 0;
    for application in applications {
        changes += application.await.unwrap();
    }
    assert!(changes >= 4 * CHANGES);
    let searches = searching.await.unwrap();
    assert!(searches > 0, "no search ran");
    eventually(async || h.count("indexing_outbox").await == 0).await;
    for worker in workers {
        worker.stop().await;
    }
    println!("{changes} changes, {searches} searches");
    h.drain_with_retries().await;
    h.assert_exact().await;
    articles.assert_followed(&mut h.connect().await).await;
    assert_nothing_is_left(&h).await;
}

/// Searches through the alias, again and again: every one is answered.
async fn search_until(
    stop: CancellationToken,
    index: std::sync::Arc<dyn elf::index::VectorIndex>,
    alias: String,
) -> usize {
    let mut searches = 0;
    while !stop.is_cancelled() {
        let text = format!("Sentence number {searches} tells of subject north {searches}");
        let query = Query {
            vector: Some(vector_of(&text, 8)),
            words: Some(text),
            filter: Filter::default(),
            candidates: 20,
            ..Query::default()
        };
        let answer = index.search(&alias, &query).await;
        answer.unwrap_or_else(|error| panic!("search {searches} failed: {error}"));
        searches += 1;
    }
    searches
}

#[tokio::test(flavor = "multi_thread")]
async fn rebuilt_under_full_speed_writes_it_is_exact() {
    rebuilt_under_fire(Harness::start().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rebuilt_under_full_speed_writes_on_a_server_it_is_exact_too() {
    let Some(server) =
        Qdrant::start("rebuilt_under_full_speed_writes_on_a_server_it_is_exact_too").await
    else {
        return;
    };
    rebuilt_under_fire(Harness::start_on(&server).await).await;
}
