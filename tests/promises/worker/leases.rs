//! A worker that shares notes, loses its lease, dies or stops writes nothing old and loses
//! nothing. Each later claim of a note has a higher token.

use elf::worker::Checkpoint;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::support::eventually;
use crate::support::harness::{Barrier, Harness, Held, sentences, spawn};

#[tokio::test]
async fn two_workers_share_the_notes_and_agree() {
    let h = Harness::start().await;
    let notes: Vec<Uuid> = {
        let mut notes = Vec::new();
        for i in 0..60 {
            notes.push(h.insert(&format!("note {i}")).await);
        }
        notes
    };
    let (one, stop_one, first) = spawn(h.worker());
    let (two, stop_two, second) = spawn(h.worker());
    for round in 0..5 {
        for note in &notes {
            h.edit(*note, &sentences(1 + round * 3, "round and round"))
                .await;
        }
    }
    eventually(async || h.count("indexing_outbox").await == 0).await;
    stop_one.cancel();
    stop_two.cancel();
    first.await.unwrap();
    second.await.unwrap();
    h.assert_converged().await;
    assert!(one.totals().notes + two.totals().notes >= 60);
}

/// A worker sleeps past its lease at every stage; another one indexes a newer,
/// shorter text meanwhile; then the first one wakes up.
#[tokio::test]
async fn a_worker_that_lost_its_lease_changes_nothing() {
    for stage in [
        Checkpoint::Claimed,
        Checkpoint::Chunked,
        Checkpoint::Embedded,
        Checkpoint::Committed,
        Checkpoint::Upserted,
        Checkpoint::Pruned,
    ] {
        let h = Harness::start().await;
        let note = h.insert(&sentences(30, "old times")).await;
        // One batch at a time, so that it does not claim the note a second time itself.
        let slow = h.one_batch_worker(h.pipeline.clone());
        let slow = Held::at(stage, slow).await;
        h.edit(note, "New and short.").await;
        h.expire_leases().await;
        h.drain().await;
        assert_eq!(
            h.count("memory_note_chunks where text = 'New and short.'")
                .await,
            1,
            "{stage:?}"
        );

        slow.open();
        slow.stop().await;
        h.drain().await;
        h.assert_converged().await;
        assert_eq!(h.points_of(note).await, 1, "{stage:?}");
    }
}

/// The process dies at a stage: its tasks end, and its leases stay.
#[tokio::test]
async fn a_crash_at_any_stage_loses_nothing_and_embeds_nothing_twice() {
    for stage in Checkpoint::ALL {
        let h = Harness::start().await;
        let kept = h.insert(&sentences(20, "things that stay")).await;
        let gone = h.insert("soon deleted").await;
        h.drain().await;
        h.edit(kept, &sentences(4, "other things")).await;
        h.delete(gone).await;
        h.insert("entirely new").await;

        let barrier = Barrier::at(stage);
        let worker = h.worker().with_breakpoint(barrier.breakpoint());
        let crashing = tokio::spawn(async move { worker.drain(CancellationToken::new()).await });
        barrier.reached().await;
        crashing.abort();
        crashing.await.unwrap_err();
        h.expire_leases().await;
        let before = h.provider.texts_seen();
        // Until nothing is due: a renewal in flight may have come after that.
        h.drain_with_retries().await;
        h.assert_converged().await;
        assert_eq!(h.points_of(gone).await, 0, "{stage:?}");
        let paid_again = h.provider.texts_seen().len() - before.len();
        if matches!(
            stage,
            Checkpoint::Committed | Checkpoint::Upserted | Checkpoint::Pruned | Checkpoint::Acked
        ) {
            assert_eq!(
                paid_again, 0,
                "{stage:?}: what Postgres has is not embedded again"
            );
        }
    }
}

#[tokio::test]
async fn the_token_of_a_note_rises_for_ever() {
    let h = Harness::start().await;
    let note = h.insert("again and again").await;
    let mut last = 0;
    for _ in 0..3 {
        h.pipeline
            .serving
            .store
            .enqueue(&Default::default())
            .await
            .unwrap();
        h.drain().await;
        let revision: i64 =
            sqlx::query_scalar("select revision from note_index_state where note_id = $1")
                .bind(note)
                .fetch_one(&h.pool)
                .await
                .unwrap();
        assert!(revision > last);
        last = revision;
    }
    h.delete(note).await;
    h.drain().await;
    assert_eq!(
        h.count("note_index_state").await,
        0,
        "the state of a note that is gone goes too"
    );
    h.execute(
        "insert into memory_notes (note_id, tenant_id, project_id, agent_id, scope, type, text)
         values ($1, 't', 'p', 'a', 's', 'n', $2)",
        note,
        "back again",
    )
    .await;
    h.drain().await;
    let revision: i64 =
        sqlx::query_scalar("select revision from note_index_state where note_id = $1")
            .bind(note)
            .fetch_one(&h.pool)
            .await
            .unwrap();
    assert!(revision > last);
}

#[tokio::test]
async fn a_stop_lets_work_in_flight_end() {
    let h = Harness::start().await;
    h.insert("on its way").await;
    // One batch at a time, so that the second note is not claimed before the stop.
    let worker = h.one_batch_worker(h.pipeline.clone());
    let held = Held::at(Checkpoint::Committed, worker).await;
    h.insert("too late for this worker").await;
    held.cancel();
    held.open();
    held.stop().await;
    assert_eq!(h.count("indexing_outbox").await, 1);
    assert_eq!(
        h.count("note_index_state where lease_until is not null")
            .await,
        0
    );
    h.drain().await;
    h.assert_converged().await;
}
