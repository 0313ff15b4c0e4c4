//! A rebuild in several loads: the engine says how many points it takes before it builds graphs.

use elf::index::IndexError;

use super::{assert_nothing_is_left, begin, kill, options, run};
use crate::support::eventually;
use crate::support::harness::Harness;
use crate::support::hooked::{Hooked, Verb, When};

const CHUNKS: usize = 5_000;
/// One page of each range.
const LOAD: u64 = 2_000;
const LOADS: usize = 3;

#[tokio::test]
async fn in_several_loads_every_point_arrives_once() {
    let h = Harness::start().await;
    h.stock(CHUNKS).await;
    let index = Hooked::over(&h.context.stores.index);
    index.load_at_most(LOAD);
    let report = run(&h.rebuilds_with(index.clone()), &options())
        .await
        .unwrap();
    assert_eq!(report.points, CHUNKS as u64);
    assert_eq!(index.calls(Verb::BeginLoad), LOADS);
    assert_eq!(index.calls(Verb::EndLoad), LOADS);
    h.assert_exact().await;
    assert_nothing_is_left(&h).await;
}

#[tokio::test]
async fn killed_between_two_loads_it_resumes_where_it_was() {
    let h = Harness::start().await;
    h.stock(CHUNKS).await;
    let index = Hooked::over(&h.context.stores.index);
    index.load_at_most(LOAD);
    let ended = index.halt(When::After, Verb::EndLoad);
    let rebuilding = begin(&h, &index, options());
    ended.reached_by(1).await;
    kill(&h, rebuilding).await;

    let index = Hooked::over(&h.context.stores.index);
    index.load_at_most(LOAD);
    let report = run(&h.rebuilds_with(index.clone()), &options())
        .await
        .unwrap();
    assert_eq!(report.points, CHUNKS as u64);
    assert_eq!(index.calls(Verb::BeginLoad), LOADS - 1);
    h.assert_exact().await;
    assert_nothing_is_left(&h).await;
}

#[tokio::test]
async fn an_engine_that_is_lost_between_two_loads_is_waited_for() {
    let h = Harness::start().await;
    h.stock(CHUNKS).await;
    let index = Hooked::over(&h.context.stores.index);
    index.load_at_most(LOAD);
    let lost = IndexError::Unavailable {
        engine: "the engine".into(),
        reason: "it is restarted".into(),
    };
    index.fail(When::After, Verb::EndLoad, lost);
    let rebuilding = begin(&h, &index, options());
    eventually(async || index.calls(Verb::EndLoad) == 2).await;
    index.heal();
    let report = rebuilding.await.unwrap().unwrap();
    assert_eq!(report.points, CHUNKS as u64);
    h.assert_exact().await;
}
