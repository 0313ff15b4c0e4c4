//! Work in flight is not drift.

use elf::worker::Checkpoint;
use tokio_util::sync::CancellationToken;

use super::{repairing, with_notes};
use crate::support::application::{Application, seed};
use crate::support::articles::Articles;
use crate::support::eventually;
use crate::support::harness::{Barrier, Findings, Harness, sentences};
use sqlx::Connection;

/// Neither a verify nor a repair reports anything.
async fn assert_no_drift(h: &Harness, what: &str) {
    let found = Findings::default();
    let report = h.verify(&found.deep()).await;
    assert_eq!(
        report.drift(),
        0,
        "{what}: {report:?}\n{}",
        found.all().join("\n")
    );
    let report = h.verify(&repairing(true)).await;
    assert_eq!(report.drift(), 0, "{what}: {report:?}");
}

#[tokio::test]
async fn a_note_in_flight_has_not_drifted_at_any_stage() {
    let h = Harness::start().await;
    for stage in Checkpoint::ALL {
        let mut notes = Vec::new();
        for i in 0..4 {
            notes.push(h.insert(&sentences(10, &format!("matter {i}"))).await);
        }
        h.drain().await;
        h.edit(notes[0], &sentences(15, "more of it")).await;
        h.edit(notes[1], "Less of it.").await;
        h.delete(notes[2]).await;
        let relabel = "update memory_notes set scope = $2 where note_id = $1";
        h.execute(relabel, notes[3], "private").await;
        h.insert(&sentences(5, "a new matter")).await;
        let barrier = Barrier::at(stage);
        let worker = h.worker().with_breakpoint(barrier.breakpoint());
        let draining = tokio::spawn(async move { worker.drain(CancellationToken::new()).await });
        barrier.reached().await;
        assert_no_drift(&h, &format!("{stage:?}")).await;
        barrier.open();
        draining.await.unwrap().unwrap();
        h.assert_exact().await;
    }
}

#[tokio::test]
async fn a_note_that_waits_for_a_worker_or_for_upkeep_has_not_drifted() {
    let h = Harness::start().await;
    with_notes(&h).await;
    let note = h.insert(&sentences(10, "what is edited")).await;
    let gone = h.insert(&sentences(10, "what is deleted")).await;
    let passing = h.insert(&sentences(10, "what expires")).await;
    h.drain().await;
    h.edit(note, "Edited.").await;
    h.delete(gone).await;
    h.insert(&sentences(3, "what is new")).await;
    // As when time passes: no outbox row is inserted.
    sqlx::raw_sql(sqlx::AssertSqlSafe(format!(
        "begin; alter table memory_notes disable trigger elf_note_replicated; set local session_replication_role = replica;
         update memory_notes set expires_at = now() where note_id = '{passing}'; commit"
    )))
    .execute(&h.pool)
    .await
    .unwrap();
    let waiting = h.count("indexing_outbox").await;
    assert_eq!(waiting, 3);
    assert_no_drift(&h, "waiting").await;
    assert_eq!(h.count("indexing_outbox").await, waiting);
    assert!(h.points_of(gone).await > 0 && h.points_of(passing).await > 0);
    h.drain_with_retries().await;
    h.assert_exact().await;
}

/// A note that failed and waits for its retry is still a worker's job.
#[tokio::test]
async fn a_note_that_failed_and_is_retried_has_not_drifted() {
    let h = Harness::start().await;
    let note = h.insert("Fine at first.").await;
    h.drain().await;
    h.edit(note, "Then poisoned.").await;
    sqlx::query(
        "update indexing_outbox set status = 'FAILED', available_at = now() + interval '1 hour'",
    )
    .execute(&h.pool)
    .await
    .unwrap();
    assert_no_drift(&h, "failed").await;
    sqlx::query("update indexing_outbox set available_at = now()")
        .execute(&h.pool)
        .await
        .unwrap();
    h.drain_with_retries().await;
    h.assert_exact().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn repairing_beside_full_speed_writes_finds_nothing_and_harms_nothing() {
    let h = Harness::start().await;
    let articles = Articles::start(&h, &mut h.connect().await).await;
    let (seed, stop) = (seed(), CancellationToken::new());
    let mut applications = Vec::new();
    for name in ["one ", "two ", "three "] {
        let mut application = Application::named(name, &h.database, seed, 5).await;
        let stop = stop.clone();
        applications.push(tokio::spawn(async move {
            let mut changes = 0;
            while changes < 500 || !stop.is_cancelled() {
                application.change().await;
                changes += 1;
                if changes % 50 == 0 {
                    while application.count("indexing_outbox").await > 300 {
                        application.db.ping().await.unwrap();
                    }
                }
            }
        }));
    }
    let workers = [h.work(), h.work()];
    eventually(async || h.count("memory_note_chunks").await > 100).await;
    for round in 0..12 {
        let options = elf::verify::Options {
            notice: std::sync::Arc::new(|finding| println!("{finding}")),
            ..repairing(true)
        };
        let report = h.verify(&options).await;
        assert_eq!(report.drift(), 0, "round {round}: {report:?}");
        assert!(report.chunks > 0);
        let drift = articles.drift(&h).await;
        assert_eq!(drift.all(), 0, "round {round}: {drift:?}");
    }
    stop.cancel();
    for application in applications {
        application.await.unwrap();
    }
    eventually(async || h.count("indexing_outbox").await == 0).await;
    for worker in workers {
        worker.stop().await;
    }
    h.drain_with_retries().await;
    h.assert_exact().await;
}
