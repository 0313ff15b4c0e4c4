//! The worker against a real Postgres and a real vector engine. Names are promises.

use std::sync::Arc;

use crate::support::embedding_server::Behaviour;
use crate::support::eventually;
use crate::support::harness::{Barrier, Harness, distance, sentences};
use elf::index::Filter;
use elf::worker::{Stage, Worker};
use sqlx::{Connection, PgConnection};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// Runs `worker` in the background until the token is cancelled.
fn spawn(worker: Worker) -> (Arc<Worker>, CancellationToken, tokio::task::JoinHandle<()>) {
    let (worker, stop) = (Arc::new(worker), CancellationToken::new());
    let running = tokio::spawn({
        let (worker, stop) = (worker.clone(), stop.clone());
        async move { worker.run(stop).await }
    });
    (worker, stop, running)
}

#[tokio::test]
async fn notes_become_points() {
    let h = Harness::start().await;
    h.insert("The cat sat on the mat.").await;
    h.insert(&sentences(40, "the weather in spring")).await;
    h.insert("").await;
    h.insert(" \n\t ").await;
    let report = h.drain().await;
    h.assert_converged().await;
    assert_eq!(report.notes, 4);
    assert_eq!(report.points, h.count("memory_note_chunks").await as u64);
    assert_eq!(report.points as usize, h.points().await.len());
    assert!(report.chunks > 10);
}

#[tokio::test]
async fn a_commit_after_the_claim_is_not_lost() {
    for stage in [
        Stage::Claimed,
        Stage::Chunked,
        Stage::Embedded,
        Stage::Committed,
        Stage::Upserted,
        Stage::Pruned,
    ] {
        let h = Harness::start().await;
        let note = h.insert("first words").await;
        let barrier = Barrier::at(stage);
        let (_, stop, running) = spawn(h.worker().with_breakpoint(barrier.breakpoint()));
        barrier.reached().await;
        h.edit(note, "second words").await;
        barrier.open();
        eventually(async || h.count("indexing_outbox").await == 0).await;
        stop.cancel();
        running.await.unwrap();
        h.assert_converged().await;
        assert_eq!(
            h.count("memory_note_chunks where text = 'second words'")
                .await,
            1,
            "{stage:?}"
        );
    }
}

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
        Stage::Claimed,
        Stage::Chunked,
        Stage::Embedded,
        Stage::Committed,
        Stage::Upserted,
        Stage::Pruned,
    ] {
        let h = Harness::start().await;
        let note = h.insert(&sentences(30, "old times")).await;
        let barrier = Barrier::at(stage);
        // One batch at a time, so that it does not claim the note a second time itself.
        let settings = elf::config::Worker {
            concurrency: 1,
            ..h.config.worker.clone()
        };
        let slow = Worker::new(h.context.clone(), &settings, &h.config.outbox);
        let (_, stop, running) = spawn(slow.with_breakpoint(barrier.breakpoint()));
        barrier.reached().await;
        h.edit(note, "New and short.").await;
        h.expire_leases().await;
        h.drain().await;
        assert_eq!(
            h.count("memory_note_chunks where text = 'New and short.'")
                .await,
            1,
            "{stage:?}"
        );

        barrier.open();
        stop.cancel();
        running.await.unwrap();
        h.drain().await;
        h.assert_converged().await;
        assert_eq!(h.points_of(note).await, 1, "{stage:?}");
    }
}

/// The process dies at a stage: its tasks end, and its leases stay.
#[tokio::test]
async fn a_crash_at_any_stage_loses_nothing_and_embeds_nothing_twice() {
    for stage in Stage::ALL {
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
            Stage::Committed | Stage::Upserted | Stage::Pruned | Stage::Acked
        ) {
            assert_eq!(
                paid_again, 0,
                "{stage:?}: what Postgres has is not embedded again"
            );
        }
    }
}

#[tokio::test]
async fn a_poison_note_harms_no_other_and_dies_alone() {
    let h = Harness::start().await;
    h.provider.poison("arsenic", Behaviour::Status(400));
    let poison = h.insert("a spoon of arsenic").await;
    for i in 0..15 {
        h.insert(&format!("wholesome note {i}")).await;
    }
    let report = h.drain_with_retries().await;
    assert_eq!(report.dead, 1);
    assert_eq!(h.points().await.len(), 15);
    let letters = h.context.stores.store.dead_letters(10).await.unwrap();
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].note_id, poison);
    assert_eq!(letters[0].attempts, 3);
    let reason = letters[0].last_error.clone().unwrap();
    assert!(reason.contains("cannot be embedded"), "{reason}");
    assert!(
        !reason.contains("arsenic"),
        "the reason holds the note's text: {reason}"
    );

    h.provider.heal();
    assert_eq!(
        h.context
            .stores
            .store
            .retry_dead(Some(&[poison]))
            .await
            .unwrap(),
        1
    );
    h.drain().await;
    h.assert_converged().await;
}

#[tokio::test]
async fn an_edit_revives_a_dead_letter() {
    let h = Harness::start().await;
    h.provider.poison("arsenic", Behaviour::Status(400));
    let note = h.insert("a spoon of arsenic").await;
    assert_eq!(h.drain_with_retries().await.dead, 1);
    h.edit(note, "a spoon of sugar").await;
    h.drain().await;
    h.assert_converged().await;
}

#[tokio::test]
async fn a_note_without_any_token_dies_at_once() {
    let h = Harness::start().await;
    h.insert("\u{1}\u{2}\u{3}").await;
    h.insert("fine").await;
    let report = h.drain().await;
    assert_eq!((report.notes, report.dead), (1, 1));
    let letters = h.context.stores.store.dead_letters(10).await.unwrap();
    assert_eq!(letters[0].attempts, 1);
}

#[tokio::test]
async fn an_outage_of_the_provider_spends_no_attempts() {
    let h = Harness::start().await;
    h.provider.always(Behaviour::Status(503));
    for i in 0..20 {
        h.insert(&format!("note {i}")).await;
    }
    let (_, stop, running) = spawn(h.worker());
    let before = h.provider.requests();
    h.provider.arrived(before + 4).await;
    assert_eq!(
        h.count("indexing_outbox where attempts > 0 or status <> 'PENDING'")
            .await,
        0
    );
    assert_eq!(h.count("indexing_outbox").await, 20);
    h.provider.heal();
    eventually(async || h.count("indexing_outbox").await == 0).await;
    stop.cancel();
    running.await.unwrap();
    h.assert_converged().await;
}

#[tokio::test]
async fn ten_thousand_rows_of_one_note_do_not_hide_the_others() {
    let h = Harness::start().await;
    let hot = h.insert("hot").await;
    sqlx::query("insert into indexing_outbox (note_id) select $1 from generate_series(1, 10000)")
        .bind(hot)
        .execute(&h.pool)
        .await
        .unwrap();
    let cold = h.insert("cold").await;
    let store = &h.context.stores.store;
    let lease = h.config.worker.lease();
    let version = &h.context.version.name;
    let claim = store
        .claim(
            version,
            "me",
            lease,
            8,
            1 << 20,
            elf::store::ClaimScope::ALL,
        )
        .await
        .unwrap()
        .unwrap();
    let mut claimed = claim.note_ids();
    claimed.sort();
    let mut both = vec![hot, cold];
    both.sort();
    assert_eq!(claimed, both);

    // Nor while another worker has the lease of the hot note.
    store
        .release(version, claim.token, &[cold], false)
        .await
        .unwrap();
    let other = store
        .claim(
            version,
            "other",
            lease,
            8,
            1 << 20,
            elf::store::ClaimScope::ALL,
        )
        .await
        .unwrap()
        .unwrap();
    assert_eq!(other.note_ids(), [cold]);
    store
        .release(version, claim.token, &[hot], false)
        .await
        .unwrap();
    store
        .release(version, other.token, &[cold], false)
        .await
        .unwrap();
    let report = h.drain().await;
    assert_eq!(report.notes, 2, "all rows of a note are one claim");
    h.assert_converged().await;
}

/// A reindex puts every note into the outbox at once. That must not slow down a daemon of
/// the active version, and the active version's rows must not slow down the reindex.
#[tokio::test]
async fn a_backlog_of_another_version_costs_a_claim_nothing() {
    let h = Harness::start().await;
    let note = h.insert("mine").await;
    let rows = "insert into indexing_outbox (note_id, embedding_version, available_at)
                select gen_random_uuid(), $1, now() - interval '1 hour' from generate_series(1, 20000)";
    sqlx::query(rows)
        .bind("another one")
        .execute(&h.pool)
        .await
        .unwrap();
    sqlx::query("analyze indexing_outbox")
        .execute(&h.pool)
        .await
        .unwrap();
    let version = &h.context.version.name;
    let read = rows_read_by_a_claim(&h, version).await;
    assert!(read < 50.0, "an active version's claim read {read} rows");

    // A claim of a building version never reads the rows of the active version, those
    // without a version included.
    sqlx::query(
        "insert into index_versions (embedding_version, embedding_dim, settings, state)
         values ('built', 8, '{}', 'building')",
    )
    .execute(&h.pool)
    .await
    .unwrap();
    sqlx::query(rows)
        .bind(None::<&str>)
        .execute(&h.pool)
        .await
        .unwrap();
    sqlx::query("insert into indexing_outbox (note_id, embedding_version) values ($1, 'built')")
        .bind(note)
        .execute(&h.pool)
        .await
        .unwrap();
    let read = rows_read_by_a_claim(&h, "built").await;
    assert!(read < 50.0, "a building version's claim read {read} rows");
}

/// How many rows of the outbox a claim of `version` reads. The claim is rolled back.
async fn rows_read_by_a_claim(h: &Harness, version: &str) -> f64 {
    let claim = concat!(
        "explain (analyze, timing off, format json) ",
        include_str!("../../sql/queries/claim.sql")
    );
    let mut transaction = h.pool.begin().await.unwrap();
    let plan: serde_json::Value = sqlx::query_scalar(claim)
        .bind(version)
        .bind("me")
        .bind(30.0f64)
        .bind(16i32)
        .bind(1i64 << 20)
        .bind(None::<chrono::DateTime<chrono::Utc>>)
        .bind(None::<Uuid>)
        .bind(elf::store::LOST_CLAIMS_UNTIL_ALONE as i32)
        .bind(i32::MAX)
        .fetch_one(&mut *transaction)
        .await
        .unwrap();
    transaction.rollback().await.unwrap();
    rows_read(&plan[0]["Plan"])
}

/// Rows that the scans of the outbox below `node` returned or threw away.
fn rows_read(node: &serde_json::Value) -> f64 {
    let number = |name: &str| node[name].as_f64().unwrap_or(0.0);
    let own = if node["Relation Name"] == "indexing_outbox" || node["Index Name"].is_string() {
        number("Actual Loops")
            * (number("Actual Rows")
                + number("Rows Removed by Filter")
                + number("Rows Removed by Index Recheck"))
    } else {
        0.0
    };
    let below = node["Plans"].as_array().into_iter().flatten();
    own + below.map(rows_read).sum::<f64>()
}

#[tokio::test]
async fn the_token_of_a_note_rises_for_ever() {
    let h = Harness::start().await;
    let note = h.insert("again and again").await;
    let mut last = 0;
    for _ in 0..3 {
        h.context
            .stores
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
async fn unchanged_text_is_not_embedded_again() {
    let h = Harness::start().await;
    let note = h.insert(&sentences(20, "the tides")).await;
    h.drain().await;
    let paid = h.provider.texts_seen().len();

    h.context
        .stores
        .store
        .enqueue(&Default::default())
        .await
        .unwrap();
    h.drain().await;
    h.insert(&sentences(20, "the tides")).await;
    h.drain().await;
    assert_eq!(
        h.provider.texts_seen().len(),
        paid,
        "neither again nor for another note"
    );

    h.delete(note).await;
    h.drain().await;
    h.assert_converged().await;
}

#[tokio::test]
async fn the_same_text_in_one_batch_is_embedded_once() {
    let h = Harness::start().await;
    for _ in 0..10 {
        h.insert("ten times the same").await;
    }
    let report = h.drain().await;
    assert_eq!((report.embedded, report.reused), (1, 9));
    assert_eq!(h.provider.texts_seen(), ["ten times the same"]);
    h.assert_converged().await;
}

#[tokio::test]
async fn an_edit_of_one_sentence_embeds_few_chunks() {
    let h = Harness::start().await;
    let text = sentences(60, "a long walk");
    let note = h.insert(&text).await;
    let all = h.drain().await.embedded;
    h.edit(
        note,
        &text.replace(
            "number 40 tells of a long walk",
            "number 40 sings of a short nap",
        ),
    )
    .await;
    let report = h.drain().await;
    assert!(
        report.embedded <= 3,
        "{} of {all} chunks were embedded",
        report.embedded
    );
    assert!(all > 15);
    h.assert_converged().await;
}

#[tokio::test]
async fn a_metadata_edit_embeds_nothing_and_updates_the_payload() {
    let h = Harness::start().await;
    let note = h.insert(&sentences(10, "labels")).await;
    h.drain().await;
    let paid = h.provider.texts_seen().len();
    h.execute(
        "update memory_notes set scope = $2 where note_id = $1",
        note,
        "team",
    )
    .await;
    h.drain().await;
    assert_eq!(h.provider.texts_seen().len(), paid);
    h.assert_converged().await;
    assert!(
        h.points()
            .await
            .iter()
            .all(|p| p.payload["scope"] == "team")
    );
}

#[tokio::test]
async fn an_update_that_changes_nothing_is_no_work() {
    let h = Harness::start().await;
    let note = h.insert("as before").await;
    h.drain().await;
    h.edit(note, "as before").await;
    h.execute(
        "update memory_notes set source_ref = jsonb_build_object('hits', $2) where note_id = $1",
        note,
        "7",
    )
    .await;
    assert_eq!(h.count("indexing_outbox").await, 0);
}

#[tokio::test]
async fn a_note_that_shrinks_leaves_no_chunk_behind() {
    let h = Harness::start().await;
    let note = h.insert(&sentences(120, "a very long story")).await;
    h.drain().await;
    assert!(h.points_of(note).await > 40);
    h.edit(note, &sentences(5, "a short story")).await;
    h.drain().await;
    h.assert_converged().await;
    assert!(h.points_of(note).await <= 3);
    h.edit(note, "").await;
    h.drain().await;
    assert_eq!(h.points_of(note).await, 0);
    assert_eq!(h.count("note_embeddings").await, 0);
    h.assert_converged().await;
}

#[tokio::test]
async fn the_pooled_vector_is_the_mean_and_costs_no_call() {
    let h = Harness::start().await;
    let note = h.insert(&sentences(20, "the middle")).await;
    h.drain().await;
    let chunks = h.count("memory_note_chunks").await as usize;
    assert_eq!(h.provider.texts_seen().len(), chunks);
    let vectors: Vec<pgvector::Vector> =
        sqlx::query_scalar("select vec from note_chunk_embeddings")
            .fetch_all(&h.pool)
            .await
            .unwrap();
    let pooled: pgvector::Vector =
        sqlx::query_scalar("select vec from note_embeddings where note_id = $1")
            .bind(note)
            .fetch_one(&h.pool)
            .await
            .unwrap();
    let mean: Vec<f32> = (0..pooled.to_vec().len())
        .map(|d| vectors.iter().map(|v| v.as_slice()[d]).sum::<f32>() / vectors.len() as f32)
        .collect();
    assert!(distance(&pooled.to_vec(), &mean) < 1e-6);
}

#[tokio::test]
async fn a_note_expires_without_a_write() {
    let h = Harness::start().await;
    let note = h.insert("gone in a moment").await;
    let (_, stop, running) = spawn(h.worker());
    eventually(async || h.points_of(note).await == 1).await;
    sqlx::query("update memory_notes set expires_at = clock_timestamp() + interval '300 milliseconds' where note_id = $1")
        .bind(note)
        .execute(&h.pool)
        .await
        .unwrap();
    eventually(async || h.points_of(note).await == 0).await;
    eventually(async || h.count("indexing_outbox").await == 0).await;
    stop.cancel();
    running.await.unwrap();
    h.assert_converged().await;
}

#[tokio::test]
async fn a_note_that_comes_back_to_life_is_not_embedded_again() {
    let h = Harness::start().await;
    let note = h.insert(&sentences(10, "winter sleep")).await;
    h.drain().await;
    let paid = h.provider.texts_seen().len();
    h.execute(
        "update memory_notes set status = $2 where note_id = $1",
        note,
        "archived",
    )
    .await;
    h.drain().await;
    assert_eq!(h.points_of(note).await, 0);
    h.execute(
        "update memory_notes set status = $2 where note_id = $1",
        note,
        "active",
    )
    .await;
    h.drain().await;
    assert!(h.points_of(note).await > 1);
    assert_eq!(h.provider.texts_seen().len(), paid);
    h.assert_converged().await;
}

#[tokio::test]
async fn deleted_and_truncated_notes_lose_their_points() {
    let h = Harness::start().await;
    let note = h.insert(&sentences(10, "the end")).await;
    for i in 0..5 {
        h.insert(&format!("note {i}")).await;
    }
    h.drain().await;
    h.delete(note).await;
    h.drain().await;
    assert_eq!(h.points_of(note).await, 0);
    h.assert_converged().await;
    sqlx::query("truncate memory_notes cascade")
        .execute(&h.pool)
        .await
        .unwrap();
    h.drain().await;
    assert_eq!(h.points().await.len(), 0);
    h.assert_converged().await;
}

#[tokio::test]
async fn a_row_deleted_while_it_is_indexed_leaves_nothing() {
    for stage in [
        Stage::Claimed,
        Stage::Chunked,
        Stage::Embedded,
        Stage::Committed,
        Stage::Upserted,
    ] {
        let h = Harness::start().await;
        let note = h.insert(&sentences(10, "short lives")).await;
        let barrier = Barrier::at(stage);
        let (_, stop, running) = spawn(h.worker().with_breakpoint(barrier.breakpoint()));
        barrier.reached().await;
        h.delete(note).await;
        barrier.open();
        eventually(async || h.count("indexing_outbox").await == 0).await;
        stop.cancel();
        running.await.unwrap();
        h.assert_converged().await;
        assert_eq!(h.points_of(note).await, 0, "{stage:?}");
    }
}

/// An application deletes in a long transaction: the worker neither waits for it
/// nor makes it wait in a circle.
#[tokio::test]
async fn a_worker_never_waits_for_an_application() {
    let h = Harness::start().await;
    let held = h.insert("held by the application").await;
    let free = h.insert("free").await;
    let mut application = PgConnection::connect(&h.database.url()).await.unwrap();
    let mut transaction = application.begin().await.unwrap();
    sqlx::query("delete from memory_notes where note_id = $1")
        .bind(held)
        .execute(&mut *transaction)
        .await
        .unwrap();
    let (_, stop, running) = spawn(h.worker());
    eventually(async || h.points_of(free).await == 1).await;
    assert_eq!(h.points_of(held).await, 0);
    transaction.commit().await.unwrap();
    eventually(async || h.count("indexing_outbox").await == 0).await;
    stop.cancel();
    running.await.unwrap();
    h.assert_converged().await;
}

#[tokio::test]
async fn a_plain_insert_into_the_outbox_is_enough() {
    let h = Harness::start().await;
    let note = h.insert("indexed already").await;
    h.drain().await;
    h.context
        .stores
        .index
        .delete(
            &h.context.stores.alias,
            &Filter {
                note_ids: Some(vec![note]),
                ..Filter::default()
            },
        )
        .await
        .unwrap();
    sqlx::query("insert into indexing_outbox (note_id, op) values ($1, 'UPSERT')")
        .bind(note)
        .execute(&h.pool)
        .await
        .unwrap();
    // An op is a hint: this note exists, whatever the row says.
    sqlx::query("insert into indexing_outbox (note_id, op) values ($1, 'DELETE')")
        .bind(note)
        .execute(&h.pool)
        .await
        .unwrap();
    // A note that never existed.
    sqlx::query("insert into indexing_outbox (note_id) values (gen_random_uuid())")
        .execute(&h.pool)
        .await
        .unwrap();
    h.drain().await;
    h.assert_converged().await;
}

#[tokio::test]
async fn while_a_note_is_indexed_again_its_points_never_vanish() {
    let h = Harness::start().await;
    let note = h.insert(&sentences(12, "version 0")).await;
    h.drain().await;
    let (_, stop, running) = spawn(h.worker());
    let editing = async {
        for version in 1..30 {
            h.edit(
                note,
                &sentences(3 + version % 10, &format!("version {version}")),
            )
            .await;
        }
        eventually(async || h.count("indexing_outbox").await == 0).await;
    };
    let watching = async {
        loop {
            assert!(
                h.points_of(note).await > 0,
                "there was a moment without any point"
            );
        }
    };
    tokio::select! {
        () = editing => {}
        () = watching => {}
    }
    stop.cancel();
    running.await.unwrap();
    h.assert_converged().await;
}

#[tokio::test]
async fn a_lost_collection_comes_back_without_one_embedding_call() {
    let h = Harness::start().await;
    for i in 0..10 {
        h.insert(&sentences(1 + i, "what was lost")).await;
    }
    h.drain().await;
    let paid = h.provider.requests();
    let name = h
        .context
        .stores
        .index
        .resolve(&h.context.stores.alias)
        .await
        .unwrap()
        .unwrap();
    h.context.stores.index.drop_collection(&name).await.unwrap();

    // A running daemon creates the lost collection again, too.
    let (_, stop, running) = spawn(h.worker());
    h.insert("the one that finds out").await;
    eventually(async || {
        h.count("indexing_outbox").await == 0
            && h.context
                .stores
                .index
                .resolve(&h.context.stores.alias)
                .await
                .unwrap()
                .is_some()
    })
    .await;
    stop.cancel();
    running.await.unwrap();
    h.assert_converged().await;
    assert!(
        h.provider.requests() <= paid + 1,
        "only the new note was embedded"
    );
    assert_eq!(h.count("indexing_outbox where attempts > 0").await, 0);
}

#[tokio::test]
async fn a_stop_lets_work_in_flight_end() {
    let h = Harness::start().await;
    h.insert("on its way").await;
    let barrier = Barrier::at(Stage::Committed);
    // One batch at a time, so that the second note is not claimed before the stop.
    let settings = elf::config::Worker {
        concurrency: 1,
        ..h.config.worker.clone()
    };
    let worker = Worker::new(h.context.clone(), &settings, &h.config.outbox);
    let (_, stop, running) = spawn(worker.with_breakpoint(barrier.breakpoint()));
    barrier.reached().await;
    h.insert("too late for this worker").await;
    stop.cancel();
    barrier.open();
    running.await.unwrap();
    assert_eq!(h.count("indexing_outbox").await, 1);
    assert_eq!(
        h.count("note_index_state where lease_until is not null")
            .await,
        0
    );
    h.drain().await;
    h.assert_converged().await;
}

#[tokio::test]
async fn done_rows_are_kept_as_long_as_asked() {
    let mut h = Harness::start().await;
    h.config.outbox.retention_secs = 3600;
    h.insert("kept").await;
    h.drain().await;
    assert_eq!(h.count("indexing_outbox where status = 'DONE'").await, 1);
    sqlx::query("update indexing_outbox set updated_at = now() - interval '2 hours'")
        .execute(&h.pool)
        .await
        .unwrap();
    h.drain().await;
    assert_eq!(h.count("indexing_outbox").await, 0);
    h.assert_converged().await;
}

#[tokio::test]
async fn a_note_that_postgres_rejects_dies_alone() {
    let h = Harness::start().await;
    sqlx::raw_sql(
        "create function no_secrets() returns trigger language plpgsql as $$
         begin
             if new.text like '%secret%' then raise exception 'this is not for everybody'; end if;
             return new;
         end $$;
         create trigger no_secrets before insert on memory_note_chunks
             for each row execute function no_secrets();",
    )
    .execute(&h.pool)
    .await
    .unwrap();
    let secret = h.insert("a secret").await;
    for i in 0..12 {
        h.insert(&format!("open note {i}")).await;
    }
    let report = h.drain_with_retries().await;
    assert_eq!(report.dead, 1);
    assert_eq!(h.points().await.len(), 12);
    let letters = h.context.stores.store.dead_letters(10).await.unwrap();
    assert_eq!(letters[0].note_id, secret);
    assert_eq!(letters[0].attempts, 3);
    let reason = letters[0].last_error.clone().unwrap();
    assert!(reason.contains("this is not for everybody"), "{reason}");
}

#[tokio::test]
async fn a_note_of_ten_megabytes_is_work_and_no_crash() {
    let mut h = Harness::start().await;
    let chunking = elf::config::Chunking {
        max_tokens: 512,
        ..h.config.chunking.clone()
    };
    let tokenizer = elf::chunk::Tokenizer::open(h.config.tokenizer_source())
        .await
        .unwrap();
    let chunker = elf::chunk::Chunker::new(Arc::new(tokenizer), &chunking, "").unwrap();
    h.context.chunker = Arc::new(chunker);
    let sentence = "The log of the station goes on and on, for ten megabytes in one line. ";
    let text: String = (0..)
        .map(|i| format!("{i} {sentence}"))
        .take(10_000_000 / sentence.len())
        .collect();
    h.insert(&text).await;
    h.insert("and a short one beside it").await;
    let report = h.drain().await;
    assert_eq!((report.notes, report.dead), (2, 0));
    assert!(report.chunks > 3_000, "{report:?}");
    h.assert_converged().await;
}

#[tokio::test]
async fn a_note_of_many_requests_pays_for_each_text_once_though_some_requests_fail() {
    let few = "timeout_ms = 2000\nmax_batch_inputs = 4\nconcurrency = 1";
    let h = Harness::start_with(|toml| toml.replace("timeout_ms = 2000", few)).await;
    h.insert(&sentences(60, "a provider with moods")).await;
    use Behaviour::{Embed, Status};
    h.provider
        .script([Embed, Embed, Status(429), Embed, Embed, Status(429)]);
    let (_, stop, running) = spawn(h.worker());
    eventually(async || h.count("indexing_outbox").await == 0).await;
    stop.cancel();
    running.await.unwrap();
    h.assert_converged().await;
    let chunks = h.count("memory_note_chunks").await as usize;
    assert!(chunks > 12, "several requests");
    // The texts of the two requests that were refused came twice.
    let sent = h.provider.texts_seen().len();
    assert!(
        sent <= chunks + 8,
        "{sent} texts were sent for {chunks} chunks"
    );
}

#[tokio::test]
async fn a_note_that_an_application_locks_is_embedded_once() {
    let h = Harness::start().await;
    let note = h.insert("held for update").await;
    let mut application = PgConnection::connect(&h.database.url()).await.unwrap();
    let mut transaction = application.begin().await.unwrap();
    sqlx::query("select from memory_notes where note_id = $1 for update")
        .bind(note)
        .execute(&mut *transaction)
        .await
        .unwrap();
    let (_, stop, running) = spawn(h.worker());
    // Three claims have begun and ended.
    eventually(async || {
        let claims: i64 = sqlx::query_scalar("select last_value from elf_lease_token")
            .fetch_one(&h.pool)
            .await
            .unwrap();
        h.count("note_index_state").await == 1 && claims > 3
    })
    .await;
    transaction.commit().await.unwrap();
    eventually(async || h.count("indexing_outbox").await == 0).await;
    stop.cancel();
    running.await.unwrap();
    h.assert_converged().await;
    assert_eq!(h.provider.texts_seen(), ["held for update"]);
}

#[tokio::test]
async fn touching_a_poison_note_resets_no_attempts() {
    let h = Harness::start().await;
    h.provider.poison("arsenic", Behaviour::Status(400));
    let note = h.insert("a spoon of arsenic").await;
    for i in 0..3 {
        h.insert(&format!("wholesome {i}")).await;
        h.drain().await;
        h.execute(
            "update memory_notes set scope = $2 where note_id = $1",
            note,
            &format!("s{i}"),
        )
        .await;
    }
    let report = h.drain_with_retries().await;
    let tries = h
        .provider
        .texts_seen()
        .iter()
        .filter(|text| text.contains("arsenic"))
        .count();
    assert_eq!(
        h.count("indexing_outbox where status = 'DEAD'").await,
        1,
        "{report:?}"
    );
    assert_eq!(h.points_of(note).await, 0);
    let attempts: i32 = sqlx::query_scalar("select attempts from indexing_outbox")
        .fetch_one(&h.pool)
        .await
        .unwrap();
    assert!(attempts >= 3, "{attempts} attempts, {tries} tries");

    h.edit(note, "a spoon of sugar").await;
    h.drain().await;
    h.assert_converged().await;
}

#[tokio::test]
async fn a_row_for_later_does_not_keep_an_expired_note_alive() {
    let h = Harness::start().await;
    let note = h.insert("to be gone soon").await;
    h.drain().await;
    sqlx::query("insert into indexing_outbox (note_id, available_at) values ($1, now() + interval '1 hour')")
        .bind(note)
        .execute(&h.pool)
        .await
        .unwrap();
    // As if time had passed: no outbox row is inserted.
    sqlx::raw_sql(
        "alter table memory_notes disable trigger user;
         update memory_notes set expires_at = now();
         alter table memory_notes enable trigger user",
    )
    .execute(&h.pool)
    .await
    .unwrap();
    h.drain().await;
    assert_eq!(h.points_of(note).await, 0);
    h.assert_converged().await;
}
