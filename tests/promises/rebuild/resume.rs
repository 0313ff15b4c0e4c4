//! Rebuilds that die, and the runs that resume them.

use std::collections::BTreeMap;
use std::sync::Arc;

use elf::index::Filter;
use elf::serving;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{
    Options, alias, assert_nothing_is_left, begin, building, kill, options, ranges_with_chunks,
    rebuild, run, with_notes,
};
use crate::support::application::{Application, seed};
use crate::support::eventually;
use crate::support::harness::Harness;
use crate::support::hooked::{Hooked, Verb, When};
use crate::support::qdrant::Qdrant;

/// The cursor and the points of each range.
async fn ranges(h: &Harness) -> BTreeMap<i32, (Uuid, i64)> {
    let rows: Vec<(i32, Uuid, i64)> =
        sqlx::query_as("select range_no, cursor, points from index_rebuild_ranges")
            .fetch_all(&h.pool)
            .await
            .unwrap();
    rows.into_iter()
        .map(|(n, upto, points)| (n, (upto, points)))
        .collect()
}

/// Kills the process at random moments, until one run completes.
#[tokio::test]
async fn killed_at_any_moment_it_resumes_where_it_was() {
    let Some(server) = Qdrant::start("killed_at_any_moment_it_resumes_where_it_was").await else {
        return;
    };
    let h = Harness::start_on(&server).await;
    h.provider
        .always(crate::support::embedding_server::Behaviour::Status(500));
    let stock = 4_000;
    h.stock(stock).await;
    let requests = h.provider.requests();
    let mut random = StdRng::seed_from_u64(seed());
    let (mut kills, mut before) = (0, BTreeMap::new());
    let report = loop {
        let sum = |ranges: &BTreeMap<i32, (Uuid, i64)>| ranges.values().map(|r| r.1).sum::<i64>();
        let far_enough = sum(&before) + random.random_range(0..1_500);
        let mut process = h.begin(&["rebuild", "--json"]);
        while process.is_running() && sum(&before) < far_enough {
            let now = ranges(&h).await;
            if now.is_empty() && !before.is_empty() {
                // It has swapped.
                continue;
            }
            for (range, (upto, points)) in &before {
                let (upto_now, points_now) = now[range];
                assert!(
                    upto_now >= *upto && points_now >= *points,
                    "range {range} fell back"
                );
            }
            before = now;
        }
        if !process.is_running() {
            break process.ended().await.exits(0).json();
        }
        process.kill().await;
        h.expire_job_lease().await;
        kills += 1;
    };
    assert!(kills > 0);
    assert_eq!(report["points"], stock, "what was done was done again");
    assert_eq!(h.provider.requests(), requests, "it asked for embeddings");
    h.assert_exact().await;
    assert_nothing_is_left(&h).await;
}

/// The same while notes are written and indexed.
#[tokio::test(flavor = "multi_thread")]
async fn killed_while_everything_changes_it_is_exact_in_the_end() {
    let Some(server) =
        Qdrant::start("killed_while_everything_changes_it_is_exact_in_the_end").await
    else {
        return;
    };
    let h = Harness::start_on(&server).await;
    h.stock(3_000).await;
    let mut application = Application::of(&h.database).await;
    let worker = h.work();
    for _ in 0..5 {
        let copied = "index_rebuild_ranges where points > 0";
        let ranges = application.random.random_range(0..5);
        let mut process = h.begin(&["rebuild", "--json"]);
        while process.is_running() && application.count(copied).await < ranges {
            application.change().await;
        }
        application.change().await;
        if process.is_running() {
            process.kill().await;
            h.expire_job_lease().await;
        } else {
            process.ended().await.exits(0);
        }
    }
    h.json(&["rebuild"]).await;
    eventually(async || h.count("indexing_outbox").await == 0).await;
    worker.stop().await;
    h.drain_with_retries().await;
    h.assert_exact().await;
    assert_nothing_is_left(&h).await;
}

/// Runs a rebuild until its first call on that side of `verb`, kills it there, and
/// runs another one to its end.
async fn killed_at(h: &Harness, when: When, verb: Verb) {
    let index = Hooked::over(&h.pipeline.serving.index);
    let halt = index.halt(when, verb);
    let rebuilding = begin(h, &index, options());
    halt.reached_by(1).await;
    kill(h, rebuilding).await;
    rebuild(h).await;
    h.drain_with_retries().await;
    h.assert_exact().await;
    assert_nothing_is_left(h).await;
}

#[tokio::test]
async fn killed_at_any_request_the_next_run_completes_it() {
    let h = Harness::start().await;
    with_notes(&h).await;
    for (when, verb) in [
        (When::After, Verb::CreateCollection),
        (When::After, Verb::BeginLoad),
        (When::Before, Verb::Upsert),
        (When::After, Verb::Upsert),
        (When::Before, Verb::Count),
        (When::Before, Verb::EndLoad),
        (When::After, Verb::EndLoad),
    ] {
        killed_at(&h, when, verb).await;
    }
}

#[tokio::test]
async fn killed_between_the_alias_and_postgres_the_next_run_completes_it() {
    let h = Harness::start().await;
    with_notes(&h).await;
    let old = h.collection().await;
    let index = Hooked::over(&h.pipeline.serving.index);
    let swapped = index.halt(When::After, Verb::PointAlias);
    let rebuilding = begin(&h, &index, options());
    swapped.reached_by(1).await;
    kill(&h, rebuilding).await;
    assert_eq!(alias(&h).await, building(&h).await);
    assert_eq!(h.collection().await, old);
    // Workers write both collections until the next rebuild.
    h.insert("A note between the two.").await;
    h.drain().await;
    assert_eq!(h.count("indexing_outbox").await, 0);
    let report = rebuild(&h).await;
    assert_eq!(Some(report.collection), alias(&h).await);
    h.drain_with_retries().await;
    h.assert_exact().await;
    assert_nothing_is_left(&h).await;
}

#[tokio::test]
async fn killed_on_either_side_of_the_drop_nothing_is_left_in_the_engine() {
    let h = Harness::start().await;
    with_notes(&h).await;
    killed_at(&h, When::Before, Verb::DropCollection).await;
    killed_at(&h, When::After, Verb::DropCollection).await;
}

#[tokio::test]
async fn a_killed_drop_leaves_no_unregistered_collection() {
    let h = Harness::start().await;
    with_notes(&h).await;
    let index = Hooked::over(&h.pipeline.serving.index);
    let filled = index.halt(When::After, Verb::Upsert);
    let rebuilding = begin(&h, &index, options());
    filled.reached_by(1).await;
    kill(&h, rebuilding).await;
    for when in [When::Before, When::After] {
        let index = Hooked::over(&h.pipeline.serving.index);
        let halt = index.halt(when, Verb::DropCollection);
        let site = h.rebuilds_with(index);
        let dropping = tokio::spawn(async move { elf::rebuild::drop_leftovers(&site).await });
        halt.reached_by(1).await;
        dropping.abort();
        assert!(dropping.await.unwrap_err().is_cancelled());
        h.expire_job_lease().await;
    }
    let site = h.rebuilds_with(h.pipeline.serving.index.clone());
    elf::rebuild::drop_leftovers(&site).await.unwrap();
    h.assert_exact().await;
    assert_nothing_is_left(&h).await;
}

/// The rebuild read a page, its note was deleted, the rebuild wrote the points, and died
/// before it could delete them.
#[tokio::test]
async fn points_that_a_killed_rebuild_wrote_of_a_deleted_note_are_removed() {
    let h = Harness::start().await;
    let notes = with_notes(&h).await;
    let index = Hooked::over(&h.pipeline.serving.index);
    let (writes, wrote) = (
        index.halt(When::Before, Verb::Upsert),
        index.halt(When::After, Verb::Upsert),
    );
    let rebuilding = begin(&h, &index, options());
    let all = ranges_with_chunks(&h).await;
    writes.reached_by(all).await;
    h.delete(notes[5]).await;
    h.drain().await;
    writes.open();
    wrote.reached_by(all).await;
    kill(&h, rebuilding).await;
    let deleted = Filter {
        note_ids: Some(vec![notes[5]]),
        ..Filter::default()
    };
    let unfinished = building(&h).await.unwrap();
    assert!(
        h.pipeline
            .serving
            .index
            .count(&unfinished, &deleted)
            .await
            .unwrap()
            > 0
    );

    let report = rebuild(&h).await;
    assert_eq!(report.collection, unfinished);
    h.assert_exact().await;
    assert_nothing_is_left(&h).await;
}

#[tokio::test]
async fn a_second_rebuild_is_told_who_runs_and_how_far_it_is() {
    let h = Harness::start().await;
    with_notes(&h).await;
    let index = Hooked::over(&h.pipeline.serving.index);
    let swap = index.halt(When::Before, Verb::PointAlias);
    let rebuilding = begin(&h, &index, options());
    swap.reached_by(1).await;
    let (holder,): (String,) = sqlx::query_as("select holder from index_job")
        .fetch_one(&h.pool)
        .await
        .unwrap();
    let chunks = h.count("memory_note_chunks").await;

    let other = Hooked::over(&h.pipeline.serving.index);
    let restart = Options {
        restart: true,
        ..options()
    };
    let (second, dropping) = {
        let site = h.rebuilds_with(other.clone());
        let second = begin(&h, &other, restart);
        tokio::join!(second, async { elf::rebuild::drop_leftovers(&site).await })
    };
    let said = second.unwrap().unwrap_err().to_string();
    for word in [
        "a rebuild of",
        &holder,
        &format!("{chunks} of {chunks} done"),
    ] {
        assert!(said.contains(word), "{word:?} is not in {said}");
    }
    assert!(dropping.unwrap_err().to_string().contains(&holder));
    assert_eq!(
        other.calls(Verb::DropCollection) + other.calls(Verb::Upsert),
        0
    );

    swap.open();
    rebuilding.await.unwrap().unwrap();
    h.assert_exact().await;
    assert_nothing_is_left(&h).await;
}

/// The next rebuild takes over the lease of a dead one as soon as it expires.
#[tokio::test]
async fn a_dead_rebuild_blocks_the_next_one_only_for_its_lease() {
    let h = Harness::start().await;
    with_notes(&h).await;
    let index = Hooked::over(&h.pipeline.serving.index);
    let filled = index.halt(When::After, Verb::Upsert);
    let dead = begin(&h, &index, options());
    filled.reached_by(1).await;
    dead.abort();
    dead.await.unwrap_err();
    let live = "index_job where lease_until > now()";
    assert_eq!(h.count(live).await, 1);
    let unfinished = building(&h).await;
    // It checks whether the other rebuild is alive.
    let index = Hooked::over(&h.pipeline.serving.index);
    let next = begin(&h, &index, options());
    tokio::task::yield_now().await;
    assert_eq!(index.calls(Verb::Upsert), 0);
    h.expire_job_lease().await;
    let report = next.await.unwrap().unwrap();
    assert_eq!(Some(report.collection), unfinished);
    h.assert_exact().await;
}

/// Two would point the alias at each other's collections.
#[tokio::test]
async fn a_rebuild_whose_lease_was_taken_stops() {
    let h = Harness::start().await;
    with_notes(&h).await;
    let index = Hooked::over(&h.pipeline.serving.index);
    let writes = index.halt(When::Before, Verb::Upsert);
    let rebuilding = begin(&h, &index, options());
    writes.reached_by(1).await;
    sqlx::query("update index_job set holder = 'another'")
        .execute(&h.pool)
        .await
        .unwrap();
    let error = rebuilding.await.unwrap().unwrap_err();
    assert!(
        error.to_string().contains("lease lost to another"),
        "{error}"
    );
    assert_eq!(h.count("index_job where holder = 'another'").await, 1);
}

/// A rebuild that is stopped in its writes and wakes after its successor has finished: what
/// it wrote reaches the engine all the same.
#[tokio::test]
async fn a_rebuild_that_wakes_after_its_successor_brings_nothing_back() {
    let h = Harness::start().await;
    let notes = with_notes(&h).await;
    let index = Hooked::over(&h.pipeline.serving.index);
    let writes = index.delay_upserts();
    let (site, stop) = (h.rebuilds_with(index.clone()), CancellationToken::new());
    let paused = tokio::spawn({
        let stop = stop.clone();
        async move { rebuild::run(&site, &options(), Arc::default(), stop).await }
    });
    writes.reached_by(ranges_with_chunks(&h).await).await;
    h.expire_job_lease().await;
    rebuild(&h).await;
    h.delete(notes[0]).await;
    h.edit(notes[1], "Little is left.").await;
    h.drain().await;
    h.assert_exact().await;
    stop.cancel();
    writes.open();
    paused.await.unwrap().unwrap_err();
    index.all_landed().await;
    h.assert_exact().await;
}

/// Also one that was dropped before it was complete.
#[tokio::test]
async fn a_collections_number_is_never_given_out_again() {
    let h = Harness::start().await;
    with_notes(&h).await;
    let index = Hooked::over(&h.pipeline.serving.index);
    index.halt(When::Before, Verb::Upsert);
    let rebuilding = begin(&h, &index, options());
    eventually(async || building(&h).await.is_some()).await;
    let unfinished = building(&h).await.unwrap();
    kill(&h, rebuilding).await;
    rebuild::drop_leftovers(&h.rebuilds_with(h.pipeline.serving.index.clone()))
        .await
        .unwrap();
    let next = run(
        &h.rebuilds_with(h.pipeline.serving.index.clone()),
        &options(),
    )
    .await;
    assert!(next.unwrap().collection > unfinished);
}

/// Postgres rolls the row back, and not the sequence.
#[tokio::test]
async fn a_collection_whose_registration_was_rolled_back_is_taken() {
    let h = Harness::start().await;
    with_notes(&h).await;
    let serving = &h.pipeline.serving;
    let next = 1 + serving.store.last_collection_number().await.unwrap();
    let left = format!("{}__{next}", serving.alias);
    let spec = serving::spec(serving, &h.pipeline.version);
    serving.index.create_collection(&left, &spec).await.unwrap();
    sqlx::query("select setval('elf_collection_number', $1)")
        .bind(next)
        .execute(&h.pool)
        .await
        .unwrap();
    assert_eq!(rebuild(&h).await.collection, left);
    assert_nothing_is_left(&h).await;
}

#[tokio::test]
async fn stopped_once_the_new_collection_is_served_it_ends_as_done() {
    let h = Harness::start().await;
    with_notes(&h).await;
    let index = Hooked::over(&h.pipeline.serving.index);
    let dropping = index.halt(When::Before, Verb::DropCollection);
    let site = h.rebuilds_with(index.clone());
    let stop = CancellationToken::new();
    let rebuilding = tokio::spawn({
        let stop = stop.clone();
        async move { rebuild::run(&site, &options(), Arc::default(), stop).await }
    });
    dropping.reached_by(1).await;
    stop.cancel();
    dropping.open();
    let report = rebuilding.await.unwrap().unwrap();
    assert_eq!(Some(report.collection), alias(&h).await);
    assert_nothing_is_left(&h).await;
}

/// It is cut off from Postgres and not from the engine when another process takes the job.
#[tokio::test]
async fn a_rebuild_that_lost_the_job_moves_no_alias_and_begins_no_load() {
    for stands in [Verb::CreateCollection, Verb::Collection, Verb::Count] {
        let h = Harness::start().await;
        with_notes(&h).await;
        let served = alias(&h).await;
        let index = Hooked::over(&h.pipeline.serving.index);
        let halt = index.halt(When::After, stands);
        let rebuilding = begin(&h, &index, options());
        halt.reached_by(1).await;
        let loads = index.calls(Verb::BeginLoad);
        h.expire_job_lease().await;
        h.dead_job().await;
        halt.open();
        let error = rebuilding.await.unwrap().unwrap_err();
        assert!(error.to_string().contains("job lease lost"), "{error}");
        assert_eq!(index.calls(Verb::PointAlias), 0, "{stands:?}");
        assert_eq!(index.calls(Verb::DropCollection), 0, "{stands:?}");
        if loads == 0 {
            assert_eq!(index.calls(Verb::BeginLoad), 0, "{stands:?}");
        }
        assert_eq!(alias(&h).await, served);
        h.assert_exact().await;
    }
}
