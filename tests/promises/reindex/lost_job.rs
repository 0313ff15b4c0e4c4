//! A process that lost the job changes nothing, wherever it wakes up.

use std::time::Duration;

use elf::rebuild;
use elf::reindex::{self, Then};
use elf::serving;
use elf::store::{JobLease, Lifecycle, StoreError};
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use super::{alias_of, assert_in_step, beside, collection_of, smaller_chunks};
use crate::support::eventually;
use crate::support::harness::{Harness, sentences};

async fn blocked(h: &Harness, statements: i64) {
    let waiting =
        "pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
    eventually(async || h.count(waiting).await == statements).await;
}

#[track_caller]
fn assert_lost<T: std::fmt::Debug>(step: Result<T, StoreError>) {
    assert!(matches!(step, Err(StoreError::JobLost)), "{step:?}");
}

/// What jobs change in Postgres.
async fn what_is_served(h: &Harness) -> String {
    sqlx::query_scalar(
        "select jsonb_build_object(
            'versions', (select jsonb_agg(array[embedding_version, state, enqueued::text]
                                          order by embedding_version) from index_versions),
            'collections', (select jsonb_agg(array[collection, state] order by collection)
                              from index_collections),
            'ranges', (select count(*) from index_rebuild_ranges),
            'chunks', (select count(*) from memory_note_chunks),
            'states', (select count(*) from note_index_state))::text",
    )
    .fetch_one(&h.pool)
    .await
    .unwrap()
}

#[tokio::test]
async fn no_step_of_a_lost_job_changes_anything() {
    let h = Harness::start().await;
    h.insert(&sentences(5, "what is at stake")).await;
    h.drain().await;
    let next = smaller_chunks(&h).await;
    next.run(Then::Swap).await.unwrap();
    let store = &h.pipeline.serving.store;
    let (old, new) = (&h.pipeline.version, &next.pipeline.version);
    let lost = h.dead_job().await;
    h.dead_job().await;
    let before = what_is_served(&h).await;

    assert_lost(store.drop_version(&lost, &old.name).await);
    assert_lost(store.retire_for_good(&lost, &old.name).await);
    assert_lost(store.resume_version(&lost, &old.name).await);
    assert_lost(
        store
            .serve_version(&lost, &old.name, Lifecycle::Retired)
            .await,
    );
    assert_lost(store.begin_version(&lost, new, "notes__9", "notes").await);
    assert_lost(
        store
            .begin_rebuild(&lost, "notes__9", "notes", &new.name, &[], &[])
            .await,
    );
    let collection = collection_of(&next.pipeline).await;
    assert_lost(store.finish_rebuild(&lost, &collection, &new.name).await);
    assert_lost(store.retire_collection(&lost, &collection).await);
    assert_lost(store.hold_job(&lost).await.map(|_| ()));
    assert_eq!(what_is_served(&h).await, before);
}

/// The drop stands before a page when its version is served again.
#[tokio::test]
async fn a_drop_deletes_no_page_of_a_version_that_was_served_meanwhile() {
    let h = Harness::start().await;
    h.stock(20).await;
    h.retire_all().await;
    let job = h.dead_job().await;
    let mut other = PgConnection::connect(&h.database.url()).await.unwrap();
    let mut swap = other.begin().await.unwrap();
    sqlx::query("update index_versions set state = 'active'")
        .execute(&mut *swap)
        .await
        .unwrap();
    let before = what_is_served(&h).await;
    let dropping = h
        .pipeline
        .serving
        .store
        .drop_version(&job, &h.pipeline.version.name);
    let served = async {
        blocked(&h, 1).await;
        swap.commit().await.unwrap();
    };
    let (dropped, ()) = tokio::join!(dropping, served);
    assert_lost(dropped);
    assert_eq!(
        what_is_served(&h).await,
        before.replace("retired\", \"true", "active\", \"true")
    );
}

/// A page that has begun ends first, also if its lease has expired.
#[tokio::test]
async fn a_page_of_a_drop_keeps_the_job_until_it_ends() {
    let h = Harness::start().await;
    h.stock(20).await;
    h.retire_all().await;
    let job = h.dead_job().await;
    let mut other = PgConnection::connect(&h.database.url()).await.unwrap();
    for table in ["note_index_state", "note_embeddings", "memory_note_chunks"] {
        let mut transaction = other.begin().await.unwrap();
        let lock = format!("lock table {table} in access exclusive mode");
        sqlx::query(AssertSqlSafe(lock))
            .execute(&mut *transaction)
            .await
            .unwrap();
        let (store, version) = (
            h.pipeline.serving.store.clone(),
            h.pipeline.version.name.clone(),
        );
        let lease = job.clone();
        let dropping = tokio::spawn(async move { store.drop_version(&lease, &version).await });
        blocked(&h, 1).await;
        let store = &h.pipeline.serving.store;
        let running = store
            .take_job("drop", "test", "another", Duration::from_secs(60))
            .await
            .unwrap();
        assert_ne!(running.holder, "another", "{table}");
        dropping.abort();
        assert!(dropping.await.unwrap_err().is_cancelled());
        transaction.commit().await.unwrap();
        blocked(&h, 0).await;
    }
    let taken = async || {
        let store = &h.pipeline.serving.store;
        let job = store.take_job("drop", "test", "another", Duration::from_secs(60));
        job.await.unwrap().holder == "another"
    };
    eventually(taken).await;
    let store = &h.pipeline.serving.store;
    assert_lost(store.drop_version(&job, &h.pipeline.version.name).await);
    let another = JobLease::of("another");
    store
        .drop_version(&another, &h.pipeline.version.name)
        .await
        .unwrap();
    assert_eq!(h.count("memory_note_chunks").await, 0);
}

/// Killed between two pages: the states are gone, and with them what is known of the chunks.
#[tokio::test]
async fn a_drop_that_was_interrupted_is_finished_before_the_version_is_built_again() {
    let h = Harness::start().await;
    let note = h.insert(&sentences(9, "what will be short")).await;
    h.insert("what stays").await;
    h.drain().await;
    let next = smaller_chunks(&h).await;
    next.run(Then::Swap).await.unwrap();
    h.edit(note, "Short now.").await;
    next.drain().await;

    let old = h.pipeline.version.name.clone();
    let job = h.dead_job().await;
    let store = &h.pipeline.serving.store;
    assert!(store.retire_for_good(&job, &old).await.unwrap());
    sqlx::query("delete from note_index_state where embedding_version = $1")
        .bind(&old)
        .execute(&h.pool)
        .await
        .unwrap();

    let back = beside(&h, |_| {}).await;
    back.run(Then::Swap).await.unwrap();
    assert_in_step(&h, &back.pipeline).await;
    let of_old = format!("memory_note_chunks where embedding_version = '{old}'");
    assert_eq!(h.count(&of_old).await, 2, "a chunk of each note");
    assert_eq!(alias_of(&h).await, collection_of(&back.pipeline).await);
}

#[tokio::test]
async fn a_rollback_after_half_a_swap_serves_the_version_before() {
    let h = Harness::start().await;
    let note = h.insert(&sentences(5, "before the swap")).await;
    h.drain().await;
    let next = smaller_chunks(&h).await;
    next.run(Then::Wait).await.unwrap();
    // Killed after Postgres has swapped and before the alias has.
    let name = &next.pipeline.version.name;
    let job = h.dead_job().await;
    let store = &h.pipeline.serving.store;
    assert!(
        store
            .serve_version(&job, name, Lifecycle::Building)
            .await
            .unwrap()
    );

    let done = reindex::rollback(&h.pipeline.serving).await.unwrap();
    assert_eq!(done.version, h.pipeline.version.name);
    assert_eq!(done.retired.as_ref(), Some(name));
    assert_eq!(alias_of(&h).await, collection_of(&h.pipeline).await);
    h.edit(note, &sentences(4, "after the rollback")).await;
    h.drain().await;
    assert_in_step(&h, &h.pipeline).await;
}

/// The worker does the same as the command: the version is marked until the alias has moved.
#[tokio::test]
async fn a_rollback_that_a_worker_began_to_finish_is_not_undone() {
    let h = Harness::start().await;
    h.insert("to and fro").await;
    h.drain().await;
    let next = smaller_chunks(&h).await;
    next.run(Then::Swap).await.unwrap();
    let job = h.dead_job().await;
    let (store, old) = (&h.pipeline.serving.store, &h.pipeline.version.name);
    assert!(
        store
            .serve_version(&job, old, Lifecycle::Retired)
            .await
            .unwrap()
    );
    // The alias cannot be moved.
    let index = &h.pipeline.serving.index;
    let theirs = serving::spec(&h.pipeline.serving, &h.pipeline.version);
    index.create_collection("theirs", &theirs).await.unwrap();
    index
        .point_alias(&h.pipeline.serving.alias, "theirs")
        .await
        .unwrap();
    serving::ensure_ready(&h.pipeline.serving, &h.pipeline.version)
        .await
        .unwrap_err();
    let new = collection_of(&next.pipeline).await;
    index
        .point_alias(&h.pipeline.serving.alias, &new)
        .await
        .unwrap();

    let done = reindex::rollback(&h.pipeline.serving).await.unwrap();
    assert_eq!((&done.version, done.retired), (old, None));
    assert_eq!(alias_of(&h).await, collection_of(&h.pipeline).await);
}

/// A rebuild died after it moved the alias: what is left of it is served.
#[tokio::test]
async fn a_leftover_that_is_served_is_replaced_before_it_is_dropped() {
    let h = Harness::start().await;
    h.insert("served all the time").await;
    h.drain().await;
    let main = alias_of(&h).await;
    let serving = &h.pipeline.serving;
    let spec = serving::spec(serving, &h.pipeline.version);
    serving
        .index
        .create_collection("notes__9", &spec)
        .await
        .unwrap();
    serving
        .store
        .begin_rebuild(
            &h.dead_job().await,
            "notes__9",
            &serving.alias,
            &h.pipeline.version.name,
            &[],
            &[],
        )
        .await
        .unwrap();
    serving
        .index
        .point_alias(&serving.alias, "notes__9")
        .await
        .unwrap();
    let dropped = rebuild::drop_leftovers(serving).await.unwrap();
    assert_eq!(dropped, ["notes__9"]);
    assert_eq!(alias_of(&h).await, main);
    h.assert_exact().await;
}

/// It was unfinished when the caller read its row.
#[tokio::test]
async fn a_collection_that_became_active_is_neither_retired_nor_forgotten() {
    let h = Harness::start().await;
    let (store, name) = (&h.pipeline.serving.store, h.collection().await);
    let job = h.dead_job().await;
    assert!(!store.retire_collection(&job, &name).await.unwrap());
    assert!(!store.forget_unfinished(&name).await.unwrap());
    assert!(!store.forget_retired(&name).await.unwrap());
    assert_eq!(h.collection().await, name);
}
