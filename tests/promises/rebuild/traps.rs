//! Changes between the read of a page and the write of its points.

use elf::worker::Checkpoint;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{
    assert_building_is_exact, assert_nothing_is_left, begin, building, options, ranges_with_chunks,
    rebuild,
};
use crate::support::eventually;
use crate::support::harness::{Barrier, Harness, sentences};
use crate::support::hooked::{Hooked, Verb, When};

/// Makes a change when every page is read and no point is written, and asserts that the
/// new collection is exact before the rebuild counts it. Returns how many deletes that
/// took, besides those of workers.
async fn change_during_backfill(change: impl AsyncFnOnce(&Harness, Uuid)) -> usize {
    let h = Harness::start().await;
    let note = h.insert(&sentences(30, "the trap")).await;
    for i in 0..5 {
        h.insert(&sentences(4, &format!("bystander {i}"))).await;
    }
    h.drain().await;
    let index = Hooked::over(&h.pipeline.serving.index);
    let (writes, looks) = (
        index.halt(When::Before, Verb::Upsert),
        index.halt(When::Before, Verb::Count),
    );
    let rebuilding = begin(&h, &index, options());
    writes.reached_by(ranges_with_chunks(&h).await).await;
    change(&h, note).await;
    writes.open();
    looks.reached_by(1).await;
    assert_building_is_exact(&h).await;
    let deletes = index.calls(Verb::Delete);
    looks.open();
    rebuilding.await.unwrap().unwrap();
    h.drain_with_retries().await;
    h.assert_exact().await;
    assert_nothing_is_left(&h).await;
    deletes
}

#[tokio::test]
async fn a_note_that_was_deleted_and_pruned_does_not_come_back() {
    let deletes = change_during_backfill(async |h, note| {
        h.delete(note).await;
        h.drain().await;
    });
    assert!(deletes.await > 0);
}

#[tokio::test]
async fn a_note_that_was_deleted_is_removed_before_any_worker_has_seen_it() {
    let deletes = change_during_backfill(async |h, note| h.delete(note).await);
    assert!(deletes.await > 0);
}

#[tokio::test]
async fn the_end_of_a_note_that_shrank_does_not_come_back() {
    let deletes = change_during_backfill(async |h, note| {
        h.edit(note, "Little is left.").await;
        h.drain().await;
    });
    assert!(deletes.await > 0);
}

#[tokio::test]
async fn a_note_that_was_archived_does_not_come_back() {
    let deletes = change_during_backfill(async |h, note| {
        let archive = "update memory_notes set status = $2 where note_id = $1";
        h.execute(archive, note, "archived").await;
        h.drain().await;
    });
    assert!(deletes.await > 0);
}

#[tokio::test]
async fn a_note_that_expired_and_was_pruned_does_not_come_back() {
    let deletes = change_during_backfill(async |h, note| {
        let expire = "update memory_notes set expires_at = now() where note_id = $1 and $2 = ''";
        h.execute(expire, note, "").await;
        h.drain().await;
    });
    assert!(deletes.await > 0);
}

#[tokio::test]
async fn of_a_note_that_was_edited_the_newer_points_stay() {
    let deletes = change_during_backfill(async |h, note| {
        h.edit(note, &sentences(30, "something else")).await;
        h.drain().await;
    });
    assert_eq!(deletes.await, 0);
}

#[tokio::test]
async fn of_a_note_that_was_relabelled_the_newer_points_stay() {
    let deletes = change_during_backfill(async |h, note| {
        let relabel = "update memory_notes set scope = $2 where note_id = $1";
        h.execute(relabel, note, "private").await;
        h.drain().await;
    });
    assert_eq!(deletes.await, 0);
}

#[tokio::test]
async fn a_note_that_was_edited_and_no_worker_has_seen_is_written_as_it_was_indexed() {
    let deletes = change_during_backfill(async |h, note| {
        h.edit(note, &sentences(10, "something that waits")).await;
    });
    assert_eq!(deletes.await, 0);
}

#[tokio::test]
async fn a_note_that_was_deleted_and_inserted_again_stays() {
    change_during_backfill(async |h, note| {
        h.delete(note).await;
        h.drain().await;
        let again =
            "insert into memory_notes (note_id, tenant_id, project_id, agent_id, scope, type, text)
                     values ($1, 't', 'p', 'a', 's', 'n', $2)";
        h.execute(again, note, &sentences(12, "a second life"))
            .await;
        h.drain().await;
    })
    .await;
}

/// The rebuild has written points of a deleted note, and is about to delete them, when
/// the application inserts the note again.
#[tokio::test]
async fn what_a_worker_wrote_meanwhile_is_not_removed() {
    let h = Harness::start().await;
    let note = h.insert(&sentences(30, "the first life")).await;
    h.drain().await;
    let index = Hooked::over(&h.pipeline.serving.index);
    let (writes, removes, looks) = (
        index.halt(When::Before, Verb::Upsert),
        index.halt(When::Before, Verb::Delete),
        index.halt(When::Before, Verb::Count),
    );
    let rebuilding = begin(&h, &index, options());
    let ranges = ranges_with_chunks(&h).await;
    writes.reached_by(ranges).await;
    h.delete(note).await;
    h.drain().await;
    writes.open();
    removes.reached_by(ranges).await;
    let again =
        "insert into memory_notes (note_id, tenant_id, project_id, agent_id, scope, type, text)
                 values ($1, 't', 'p', 'a', 's', 'n', $2)";
    h.execute(again, note, &sentences(30, "the second life"))
        .await;
    h.drain().await;
    removes.open();
    looks.reached_by(1).await;
    assert_building_is_exact(&h).await;
    looks.open();
    rebuilding.await.unwrap().unwrap();
    h.assert_exact().await;
}

/// A worker has read which collections to write to, without the new one, and has not
/// committed. If the registration did not wait for it, the rebuild could read the
/// page before the commit, and the new collection would never get the change.
#[tokio::test]
async fn the_registration_waits_for_writers_that_do_not_know_of_it() {
    let h = Harness::start().await;
    let note = h.insert(&sentences(10, "the old text")).await;
    h.drain().await;
    // Blocks the workers' transactions at their end, when they have read everything.
    sqlx::raw_sql(
        "create function hold() returns trigger language plpgsql as
         $$ begin perform pg_advisory_xact_lock(1); return null; end $$;
         create constraint trigger hold after update on note_index_state
             deferrable initially deferred for each row
             when (old.revision is distinct from new.revision) execute function hold()",
    )
    .execute(&h.pool)
    .await
    .unwrap();
    let mut holder = h.connect().await;
    let lock = async |holder: &mut sqlx::PgConnection, statement: &'static str| {
        sqlx::raw_sql(statement).execute(holder).await.unwrap();
    };
    lock(&mut holder, "select pg_advisory_lock(1)").await;
    h.edit(note, &sentences(12, "the new text")).await;
    let worker = h.worker();
    let draining = tokio::spawn(async move { worker.drain(CancellationToken::new()).await });
    let waits = "pg_locks where not granted and database =
                    (select oid from pg_database where datname = current_database())";
    eventually(async || h.count(&format!("{waits} and locktype = 'advisory'")).await == 1).await;

    let index = Hooked::over(&h.pipeline.serving.index);
    let rebuilding = begin(&h, &index, options());
    eventually(async || {
        let registers = "and relation = 'index_collections'::regclass and mode = 'ExclusiveLock'";
        h.count(&format!("{waits} {registers}")).await == 1
    })
    .await;
    assert_eq!(building(&h).await, None);
    assert_eq!(index.calls(Verb::Upsert), 0);

    lock(&mut holder, "select pg_advisory_unlock(1)").await;
    draining.await.unwrap().unwrap();
    rebuilding.await.unwrap().unwrap();
    h.drain_with_retries().await;
    h.assert_exact().await;
}

/// A worker has committed under the old registration and writes its points when the
/// rebuild is over and the collection that it writes to is gone.
#[tokio::test]
async fn a_writer_that_is_late_for_a_whole_rebuild_loses_nothing() {
    let h = Harness::start().await;
    let note = h.insert(&sentences(10, "the old text")).await;
    h.drain().await;
    for stage in [
        Checkpoint::Committed,
        Checkpoint::Upserted,
        Checkpoint::Pruned,
    ] {
        let text = format!("the text that comes when others are {stage:?}");
        h.edit(note, &sentences(5, &text)).await;
        let barrier = Barrier::at(stage);
        let worker = h.worker().with_breakpoint(barrier.breakpoint());
        let draining = tokio::spawn(async move { worker.drain(CancellationToken::new()).await });
        barrier.reached().await;
        rebuild(&h).await;
        barrier.open();
        draining.await.unwrap().unwrap();
        h.drain_with_retries().await;
        h.assert_exact().await;
        assert_nothing_is_left(&h).await;
    }
}
