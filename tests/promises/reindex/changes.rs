//! Every change of a note reaches the served version and the version that is being built,
//! whenever it was committed.

use chrono::DateTime;
use elf::reindex::{self, Then};
use elf::serving;
use elf::store::{Lifecycle, Selection};
use elf::worker::Checkpoint;
use sqlx::{Connection, PgConnection};
use uuid::Uuid;

use super::{alias_of, assert_in_step, smaller_chunks};
use crate::support::embedding_server::Behaviour;
use crate::support::eventually;
use crate::support::harness::{Harness, Held, sentences, spawn};

#[tokio::test]
async fn both_versions_stay_in_step_while_one_is_served_and_the_other_is_built() {
    let h = Harness::start().await;
    let mut notes = Vec::new();
    for i in 0..30 {
        notes.push(
            h.insert(&sentences(1 + i % 7, &format!("matter {i}")))
                .await,
        );
    }
    h.drain().await;
    let next = smaller_chunks(&h).await;
    let served = alias_of(&h).await;

    let (_, stop, running) = spawn(h.worker());
    let application = async {
        for round in 0..6 {
            for (i, note) in notes.iter().enumerate().skip(round).step_by(3) {
                h.edit(
                    *note,
                    &sentences(1 + (i + round) % 5, &format!("round {round} of {i}")),
                )
                .await;
            }
            h.delete(notes[round]).await;
            h.insert(&format!("born in round {round}")).await;
            h.execute(
                "update memory_notes set status = $2 where note_id = $1",
                notes[10 + round],
                "archived",
            )
            .await;
        }
    };
    let (built, ()) = tokio::join!(next.run(Then::Wait), application);
    let built = built.unwrap();
    assert_eq!(built.state, Lifecycle::Building);
    assert_eq!(alias_of(&h).await, served, "the old version is served");

    // The old daemon claims the last changes, and hands a copy of each on.
    eventually(async || {
        let left = h
            .pipeline
            .serving
            .store
            .outbox_counts(Some(&h.pipeline.version.name))
            .await
            .unwrap();
        left.pending + left.leased + left.failed == 0
    })
    .await;
    stop.cancel();
    running.await.unwrap();
    next.drain().await;
    assert_in_step(&h, &h.pipeline).await;
    assert_in_step(&h, &next.pipeline).await;
    assert_eq!(h.count("indexing_outbox").await, 0);
}

#[tokio::test]
async fn a_change_that_was_claimed_before_the_registration_is_seen() {
    let h = Harness::start().await;
    let note = h.insert("first words").await;
    h.drain().await;
    h.edit(note, "second words").await;
    // A claim that knows only one version takes the row without a version.
    let held = h.held_at(Checkpoint::Claimed).await;
    let next = smaller_chunks(&h).await;
    next.run(Then::Wait).await.unwrap();
    held.open();
    eventually(async || h.count("indexing_outbox").await == 0).await;
    held.stop().await;
    assert_in_step(&h, &next.pipeline).await;
    assert_in_step(&h, &h.pipeline).await;
}

#[tokio::test]
async fn a_change_between_the_registration_and_the_enqueueing_is_seen() {
    let h = Harness::start().await;
    let note = h.insert("first words").await;
    h.drain().await;
    let next = smaller_chunks(&h).await;
    // As a reindex that died before it came to put every note into the outbox.
    let spec = serving::spec(&next.pipeline.serving, &next.pipeline.version);
    h.pipeline
        .serving
        .index
        .create_collection("notes__7", &spec)
        .await
        .unwrap();
    let store = &h.pipeline.serving.store;
    store
        .begin_version(
            &h.dead_job().await,
            &next.pipeline.version,
            "notes__7",
            "notes",
        )
        .await
        .unwrap();
    h.edit(note, "second words").await;
    h.insert("another one").await;
    h.drain().await;
    assert_eq!(
        h.count("indexing_outbox where embedding_version is null")
            .await,
        0
    );
    assert_eq!(
        h.count("indexing_outbox").await,
        2,
        "one copy for each change"
    );
    next.run(Then::Wait).await.unwrap();
    assert_in_step(&h, &next.pipeline).await;
    assert_in_step(&h, &h.pipeline).await;
}

#[tokio::test]
async fn many_rows_of_a_note_are_one_copy() {
    let h = Harness::start().await;
    let note = h.insert("hot").await;
    h.drain().await;
    let next = smaller_chunks(&h).await;
    next.run(Then::Wait).await.unwrap();
    sqlx::query("insert into indexing_outbox (note_id) select $1 from generate_series(1, 500)")
        .bind(note)
        .execute(&h.pool)
        .await
        .unwrap();
    h.drain().await;
    assert_eq!(h.count("indexing_outbox").await, 1);
    next.drain().await;
    assert_in_step(&h, &next.pipeline).await;
}

#[tokio::test]
async fn dead_letters_without_a_version_stay_with_the_one_they_died_under() {
    let h = Harness::start().await;
    h.provider.poison("arsenic", Behaviour::Status(400));
    let note = h.insert("arsenic").await;
    h.drain_with_retries().await;
    h.insert("sugar").await;
    h.drain().await;
    h.provider.heal();
    let next = smaller_chunks(&h).await;
    next.run(Then::Swap).await.unwrap();
    let counts = h
        .pipeline
        .serving
        .store
        .outbox_counts(Some(&next.pipeline.version.name))
        .await
        .unwrap();
    assert_eq!(counts.dead, 0, "it was indexed under the new version");
    assert_eq!(h.points_of(note).await, 1);
    reindex::drop(&h.pipeline.serving, None).await.unwrap();
    assert_eq!(h.count("indexing_outbox").await, 0);
}

#[tokio::test]
async fn an_enqueued_note_is_due_for_both() {
    let h = Harness::start().await;
    let note = h.insert("again").await;
    h.drain().await;
    let next = smaller_chunks(&h).await;
    next.run(Then::Wait).await.unwrap();
    h.pipeline
        .serving
        .store
        .enqueue(&Selection::default())
        .await
        .unwrap();
    h.drain().await;
    assert_eq!(h.count("indexing_outbox").await, 1);
    next.drain().await;
    let states: i64 =
        sqlx::query_scalar("select count(*) from note_index_state where note_id = $1")
            .bind(note)
            .fetch_one(&h.pool)
            .await
            .unwrap();
    assert_eq!(states, 2);
    assert_in_step(&h, &next.pipeline).await;
}

/// `created_at` is when a transaction began. The newest row may be of a change that a claim in flight has
/// seen, and the oldest of one that it has not.
#[tokio::test]
async fn a_change_that_began_first_and_commits_last_is_seen() {
    let h = Harness::start().await;
    let note = h.insert("first words").await;
    h.drain().await;
    let next = smaller_chunks(&h).await;
    next.run(Then::Wait).await.unwrap();

    let mut application = PgConnection::connect(&h.database.url()).await.unwrap();
    let mut late = application.begin().await.unwrap();
    h.edit(note, "second words").await;
    h.drain().await;
    let held = Held::at(
        Checkpoint::Chunked,
        h.one_batch_worker(next.pipeline.clone()),
    )
    .await;
    sqlx::query("update memory_notes set text = 'last words' where note_id = $1")
        .bind(note)
        .execute(&mut *late)
        .await
        .unwrap();
    late.commit().await.unwrap();
    h.drain().await;
    // The worker may have done it meanwhile.
    let (store, first) = (
        &h.pipeline.serving.store,
        (DateTime::UNIX_EPOCH, Uuid::nil()),
    );
    let built = &next.pipeline.version.name;
    store.coalesce_building(built, first).await.unwrap();
    held.open();
    eventually(async || h.count("indexing_outbox").await == 0).await;
    held.stop().await;
    assert_in_step(&h, &h.pipeline).await;
    assert_in_step(&h, &next.pipeline).await;
}

#[tokio::test]
async fn rows_for_later_reach_both_versions_when_they_are_due() {
    let h = Harness::start().await;
    let note = h.insert("soon").await;
    h.drain().await;
    let next = smaller_chunks(&h).await;
    next.run(Then::Wait).await.unwrap();
    sqlx::query(
        "insert into indexing_outbox (note_id, available_at)
         select $1, t from unnest(array[now(), now() + interval '1 hour', now() + interval '2 hours']) t",
    )
    .bind(note)
    .execute(&h.pool)
    .await
    .unwrap();
    let hour = "update indexing_outbox
                   set created_at = created_at - interval '61 minutes',
                       available_at = available_at - interval '61 minutes'";
    for left in [2, 1, 0] {
        let indexed = h.drain().await.notes;
        let built = next.drain().await.notes;
        assert_eq!((indexed, built), (1, 1), "{left} are left");
        assert_eq!(h.count("indexing_outbox").await, left);
        sqlx::query(hour).execute(&h.pool).await.unwrap();
    }
}
