//! The points of the index become the chunks of the live notes, whatever happens to a note,
//! and a note that the worker indexes again never vanishes meanwhile.

use std::sync::Arc;

use elf::worker::Checkpoint;

use crate::support::embedding_server::Behaviour;
use crate::support::eventually;
use crate::support::harness::{Harness, Held, sentences, spawn};
use crate::support::hooked::{Hooked, Verb};

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

/// The engine applies the writes of a shard one after the other.
#[tokio::test]
async fn a_new_note_deletes_no_points() {
    let mut h = Harness::start().await;
    let index = Hooked::over(&h.pipeline.serving.index);
    h.pipeline.serving.index = index.clone();
    let note = h.insert(&sentences(9, "a new story")).await;
    h.drain().await;
    assert_eq!(index.calls(Verb::Delete), 0);
    h.edit(note, "It is over.").await;
    h.drain().await;
    assert_eq!(index.calls(Verb::Delete), 1);
    h.assert_converged().await;
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
        .pipeline
        .serving
        .index
        .resolve(&h.pipeline.serving.alias)
        .await
        .unwrap()
        .unwrap();
    h.pipeline
        .serving
        .index
        .drop_collection(&name)
        .await
        .unwrap();

    // A running daemon creates the lost collection again, too.
    let (_, stop, running) = spawn(h.worker());
    h.insert("the one that finds out").await;
    eventually(async || {
        h.count("indexing_outbox").await == 0
            && h.pipeline
                .serving
                .index
                .resolve(&h.pipeline.serving.alias)
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
async fn a_note_of_ten_megabytes_is_work_and_no_crash() {
    let mut h = Harness::start().await;
    let mut chunking = h.config.chunking.clone();
    chunking.settings.max_tokens = 512;
    let tokenizer = elf::chunk::open_tokenizer(h.config.tokenizer_source())
        .await
        .unwrap();
    let chunker = elf::chunk::NoteChunker::new(Arc::new(tokenizer), &chunking, "").unwrap();
    h.pipeline.chunker = Arc::new(chunker);
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
    // It asks for a round of its own.
    let made_due = sqlx::query("update indexing_outbox set available_at = now()")
        .execute(&h.pool)
        .await
        .unwrap();
    assert_eq!(made_due.rows_affected(), 1);
    h.drain().await;
    h.assert_converged().await;
}

/// With the text of the note that was there when it was loaded, another tenant would read it.
#[tokio::test]
async fn a_note_that_became_another_tenants_while_it_was_indexed_gets_no_old_text() {
    for had_chunks in [false, true] {
        let h = Harness::start().await;
        let note = h.insert("a secret of the first tenant").await;
        if had_chunks {
            h.drain().await;
            h.edit(note, "another secret of the first tenant").await;
        }
        let held = Held::at(Checkpoint::Embedded, h.one_batch_worker(h.pipeline.clone())).await;
        h.delete(note).await;
        h.execute(
            "insert into memory_notes (note_id, tenant_id, project_id, agent_id, scope, type, text)
             values ($1, 'u', 'p', 'a', 's', 'n', $2)",
            note,
            "what the second tenant wrote",
        )
        .await;
        h.provider.poison("second tenant", Behaviour::Status(400));
        held.open();
        eventually(async || h.count("indexing_outbox where status = 'DEAD'").await == 1).await;
        held.stop().await;
        assert_eq!(h.count("memory_note_chunks").await, 0);
        assert_eq!(h.points_of(note).await, 0);
        h.provider.heal();
        h.pipeline.serving.store.retry_dead(None).await.unwrap();
        h.drain_with_retries().await;
        h.assert_converged().await;
    }
}
