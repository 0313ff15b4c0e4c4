//! The same command continues a reindex that was killed, and a collection that disappears
//! while workers write to it stops none of them.

use std::sync::Arc;

use elf::reindex::{self, Then};
use elf::serving::{self, Serving};
use elf::store::Lifecycle;
use elf::worker::{Checkpoint, Pipeline};

use super::{
    alias_of, assert_in_step, beside, collection_of, expire_leases_and_job, smaller_chunks,
};
use crate::support::eventually;
use crate::support::harness::{Barrier, Harness, sentences, spawn};

#[tokio::test]
async fn killed_at_any_stage_a_reindex_resumes() {
    for stage in [
        Checkpoint::Claimed,
        Checkpoint::Embedded,
        Checkpoint::Committed,
        Checkpoint::Upserted,
        Checkpoint::Pruned,
        Checkpoint::Acked,
    ] {
        let h = Harness::start().await;
        for i in 0..20 {
            h.insert(&sentences(1 + i % 4, &format!("number {i}")))
                .await;
        }
        h.drain().await;
        let next = smaller_chunks(&h).await;
        let barrier = Barrier::at(stage);
        let worker = next.worker().with_breakpoint(barrier.breakpoint());
        tokio::select! {
            // After the last ack nothing is due: the reindex may end before the batch does.
            _ = next.run_with(&worker, Then::Wait) => {
                assert_eq!(stage, Checkpoint::Acked, "it was to stand still");
            }
            () = barrier.reached() => {}
        }
        let again = beside(&h, |config| config.clone_from(&next.config)).await;
        expire_leases_and_job(&h.pool).await;
        let report = again.run(Then::Swap).await.unwrap();
        assert_eq!(report.state, Lifecycle::Active, "{stage:?}");
        assert_in_step(&h, &again.pipeline).await;
        assert_eq!(alias_of(&h).await, collection_of(&again.pipeline).await);

        // The stopped worker was not killed after all, and resumes.
        drop(worker);
        barrier.open();
        eventually(async || Arc::strong_count(&h.pipeline.serving.index) == 3).await;
        again.drain().await;
        assert_in_step(&h, &again.pipeline).await;
    }
}

#[tokio::test]
async fn killed_between_any_two_steps_the_same_command_finishes_the_job() {
    let h = Harness::start().await;
    h.insert(&sentences(5, "steps")).await;
    h.drain().await;
    let old = collection_of(&h.pipeline).await;
    let next = smaller_chunks(&h).await;

    // Killed after the engine made the collection and before Postgres knows it: ELF uses it.
    let spec = serving::spec(&next.pipeline.serving, &next.pipeline.version);
    h.pipeline
        .serving
        .index
        .create_collection("notes__2", &spec)
        .await
        .unwrap();
    next.run(Then::Wait).await.unwrap();
    assert_eq!(collection_of(&next.pipeline).await, "notes__2");

    // Killed after Postgres has swapped and before the alias has.
    let store = &h.pipeline.serving.store;
    let name = &next.pipeline.version.name;
    assert!(
        store
            .serve_version(&h.dead_job().await, name, Lifecycle::Building)
            .await
            .unwrap()
    );
    assert_eq!(alias_of(&h).await, old);
    next.run(Then::Swap).await.unwrap();
    assert_eq!(alias_of(&h).await, "notes__2");

    // The same for a rollback: the command finishes it and does not undo it.
    let old_version = &h.pipeline.version.name;
    assert!(
        store
            .serve_version(&h.dead_job().await, old_version, Lifecycle::Retired)
            .await
            .unwrap()
    );
    let done = reindex::rollback(&h.pipeline.serving).await.unwrap();
    assert_eq!((&done.version, done.retired), (old_version, None));
    assert_eq!(alias_of(&h).await, old);
    h.drain().await;
    assert_in_step(&h, &h.pipeline).await;
}

#[tokio::test]
async fn a_rebuild_whose_collection_is_lost_blocks_no_worker() {
    let h = Harness::start().await;
    h.insert("written to one").await;
    h.drain().await;
    let store = &h.pipeline.serving.store;
    let Pipeline {
        serving: Serving { alias, .. },
        version,
        ..
    } = &h.pipeline;
    // As after a rebuild whose collection was lost: registered, and not in the engine.
    store
        .begin_rebuild(
            &h.dead_job().await,
            "notes__9",
            alias,
            &version.name,
            &[],
            &[],
        )
        .await
        .unwrap();
    let (worker, stop, running) = spawn(h.worker());
    h.insert("meets it").await;
    eventually(async || h.count("indexing_outbox").await == 0).await;
    assert!(worker.outage().is_none());
    stop.cancel();
    running.await.unwrap();
    assert_eq!(h.count("index_collections").await, 1);
    h.assert_converged().await;
}

/// The rows were committed while the collection was a target. The batch writes the points after
/// the collection was dropped.
#[tokio::test]
async fn a_collection_deleted_between_commit_and_write_is_no_outage() {
    let h = Harness::start().await;
    let store = &h.pipeline.serving.store;
    let Pipeline {
        serving: Serving { alias, index, .. },
        version,
        ..
    } = &h.pipeline;
    index
        .create_collection(
            "notes__9",
            &serving::spec(&h.pipeline.serving, &h.pipeline.version),
        )
        .await
        .unwrap();
    store
        .begin_rebuild(
            &h.dead_job().await,
            "notes__9",
            alias,
            &version.name,
            &[],
            &[],
        )
        .await
        .unwrap();
    h.insert("written to two").await;
    let held = h.held_at(Checkpoint::Committed).await;
    store.forget_unfinished("notes__9").await.unwrap();
    index.drop_collection("notes__9").await.unwrap();
    let token: i64 = sqlx::query_scalar("select lease_token from note_index_state")
        .fetch_one(&h.pool)
        .await
        .unwrap();
    held.open();
    eventually(async || h.count("indexing_outbox").await == 0).await;
    assert!(held.worker.outage().is_none());
    held.stop().await;
    h.assert_converged().await;
    let revision: i64 = sqlx::query_scalar("select revision from note_index_state")
        .fetch_one(&h.pool)
        .await
        .unwrap();
    assert_eq!(revision, token, "at the first try");
}
