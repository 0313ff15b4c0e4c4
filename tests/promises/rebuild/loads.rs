//! A rebuild in several loads: the engine says how many points it takes before it builds graphs.

use std::sync::Arc;

use elf::index::IndexError;
use elf::rebuild::Report;

use super::{assert_nothing_is_left, begin, kill, options};
use crate::support::eventually;
use crate::support::harness::Harness;
use crate::support::hooked::{Hooked, Verb, When};

const CHUNKS: usize = 5_000;
/// One page of each range.
const LOAD: u64 = 2_000;
const LOADS: usize = 3;

/// Chunks in Postgres, and an engine with a limit.
async fn with_chunks() -> (Harness, Arc<Hooked>) {
    let h = Harness::start().await;
    h.stock(CHUNKS).await;
    let index = limited(&h);
    (h, index)
}

fn limited(h: &Harness) -> Arc<Hooked> {
    let index = Hooked::over(&h.pipeline.serving.index);
    index.load_at_most(LOAD);
    index
}

async fn assert_rebuilt(h: &Harness, report: &Report) {
    assert_eq!(report.points, CHUNKS as u64);
    h.assert_exact().await;
    assert_nothing_is_left(h).await;
}

#[tokio::test]
async fn in_several_loads_every_point_arrives_once() {
    let (h, index) = with_chunks().await;
    let report = begin(&h, &index, options()).await.unwrap().unwrap();
    assert_eq!(index.calls(Verb::BeginLoad), LOADS);
    assert_eq!(index.calls(Verb::EndLoad), LOADS);
    assert_rebuilt(&h, &report).await;
}

#[tokio::test]
async fn killed_between_two_loads_it_resumes_where_it_was() {
    let (h, index) = with_chunks().await;
    let ended = index.halt(When::After, Verb::EndLoad);
    let rebuilding = begin(&h, &index, options());
    ended.reached_by(1).await;
    kill(&h, rebuilding).await;

    let index = limited(&h);
    let report = begin(&h, &index, options()).await.unwrap().unwrap();
    assert_eq!(index.calls(Verb::BeginLoad), LOADS - 1);
    // The load of the killed run is ended first.
    assert_eq!(index.calls(Verb::EndLoad), LOADS);
    assert_rebuilt(&h, &report).await;
}

#[tokio::test]
async fn an_engine_that_is_lost_between_two_loads_is_waited_for() {
    let (h, index) = with_chunks().await;
    let lost = IndexError::Unavailable {
        engine: "the engine".into(),
        reason: "it is restarted".into(),
    };
    index.fail(When::After, Verb::EndLoad, lost);
    let rebuilding = begin(&h, &index, options());
    eventually(async || index.calls(Verb::EndLoad) == 2).await;
    index.heal();
    let report = rebuilding.await.unwrap().unwrap();
    assert_rebuilt(&h, &report).await;
}

#[tokio::test]
async fn an_engine_that_is_restarted_while_it_builds_graphs_is_woken() {
    let (h, index) = with_chunks().await;
    let ended = index.halt(When::After, Verb::EndLoad);
    let rebuilding = begin(&h, &index, options());
    ended.reached_by(1).await;
    index.restart();
    ended.open();
    // Else it would wait for ever.
    eventually(async || rebuilding.is_finished()).await;
    let report = rebuilding.await.unwrap().unwrap();
    assert_eq!(index.calls(Verb::EndLoad), LOADS + 1);
    assert_rebuilt(&h, &report).await;
}
