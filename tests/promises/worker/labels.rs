//! An edit of a note's labels alone rewrites no chunk and sends no vector, and is no shortcut around
//! a point that is missing or wrong.

use std::sync::Arc;

use elf::index::{Filter, IndexError, Point, UpsertMode, VectorIndex};
use elf::rebuild;
use elf::serving::Serving;
use elf::store::LiveChunk;
use elf::worker::Checkpoint;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::support::eventually;
use crate::support::harness::{Harness, sentences};
use crate::support::hooked::{Hooked, Verb, When};

/// The rows that hold what was made of the text, and where Postgres keeps them: a rewritten row is
/// elsewhere.
async fn rows(h: &Harness) -> Vec<String> {
    sqlx::query_scalar(
        "select concat_ws(' ', 'chunk', chunk_id, ctid, xmin) from memory_note_chunks
         union all
         select concat_ws(' ', 'vector', chunk_id, ctid, xmin) from note_chunk_embeddings
         union all
         select concat_ws(' ', 'pooled', note_id, ctid, xmin) from note_embeddings
          order by 1",
    )
    .fetch_all(&h.pool)
    .await
    .unwrap()
}

/// A note of about a hundred chunks and one of a few, indexed.
async fn indexed(h: &Harness) -> Uuid {
    let note = h.insert(&sentences(300, "a story that is long")).await;
    h.insert(&sentences(4, "a short one")).await;
    h.drain().await;
    assert!(h.points_of(note).await > 90);
    note
}

async fn move_to(h: &Harness, note: Uuid, scope: &str) {
    let statement =
        "update memory_notes set scope = $2, key = null, expires_at = now() + interval '1 day'
                      where note_id = $1";
    h.execute(statement, note, scope).await;
}

#[tokio::test]
async fn an_edit_of_labels_rewrites_no_chunk_and_sends_no_vector() {
    let mut h = Harness::start().await;
    let note = indexed(&h).await;
    h.execute(
        "update memory_notes set key = $2 where note_id = $1",
        note,
        "k",
    )
    .await;
    h.drain().await;
    let (before, paid) = (rows(&h).await, h.provider.requests());
    let index = Hooked::over(&h.pipeline.serving.index);
    h.pipeline.serving.index = index.clone();
    for scope in ["team", "world"] {
        move_to(&h, note, scope).await;
        h.drain().await;
        h.assert_exact().await;
    }
    assert_eq!(rows(&h).await, before);
    assert_eq!(h.provider.requests(), paid);
    assert_eq!(
        (index.calls(Verb::Relabel), index.calls(Verb::Upsert)),
        (2, 0)
    );
    let moved = Filter {
        keywords: [("scope".to_owned(), "world".to_owned())].into(),
        ..Filter::default()
    };
    let alias = &h.pipeline.serving.alias;
    assert!(index.count(alias, &moved).await.unwrap() > 90);
}

#[tokio::test]
async fn an_edit_of_labels_restores_a_point_that_is_missing_or_of_another_revision() {
    let h = Harness::start().await;
    let note = indexed(&h).await;
    let point = h
        .points()
        .await
        .into_iter()
        .find(|p| p.payload["note_id"] == note.to_string());
    let chunk = point.unwrap().chunk_id;
    let index = &h.pipeline.serving.index;
    let missing = Filter {
        chunk_ids: Some(vec![chunk]),
        ..Filter::default()
    };
    index
        .delete(&h.pipeline.serving.alias, &missing)
        .await
        .unwrap();
    move_to(&h, note, "team").await;
    h.drain().await;
    h.assert_exact().await;

    // As of a commit that Postgres has lost: another text, and a revision of another history.
    let mut stale = stored(&h, &[chunk]).await;
    let stale_point = &mut stale[0];
    stale_point.payload.note.revision -= 1;
    stale_point.vector.as_mut().unwrap().reverse();
    put(&h, stale).await;
    move_to(&h, note, "world").await;
    h.drain().await;
    h.assert_exact().await;
}

/// Postgres has lost the transactions of a commit, and issues its token again.
#[tokio::test]
async fn points_that_have_the_revision_before_the_edit_are_replaced() {
    let h = Harness::start().await;
    let note = indexed(&h).await;
    move_to(&h, note, "team").await;
    let held = h.held_at(Checkpoint::Committed).await;
    let chunks = sqlx::query_scalar("select chunk_id from memory_note_chunks where note_id = $1");
    let chunks: Vec<Uuid> = chunks.bind(note).fetch_all(&h.pool).await.unwrap();
    let mut lost = stored(&h, &chunks).await;
    for point in &mut lost {
        point.vector.as_mut().unwrap().reverse();
    }
    put(&h, lost).await;
    held.open();
    eventually(async || h.count("indexing_outbox").await == 0).await;
    held.stop().await;
    h.assert_exact().await;
}

/// A verify may find a wrong row at that moment.
#[tokio::test]
async fn a_note_that_is_requeued_before_its_ack_is_written_whole_after_it() {
    let h = Harness::start().await;
    let note = indexed(&h).await;
    move_to(&h, note, "team").await;
    let held = h.held_at(Checkpoint::Committed).await;
    let wrong = "update memory_note_chunks set text = $2 where note_id = $1";
    h.execute(wrong, note, "of nobody").await;
    let version = &h.pipeline.version.name;
    let store = &h.pipeline.serving.store;
    store.requeue(version, &[note]).await.unwrap();
    held.open();
    eventually(async || h.count("indexing_outbox").await == 0).await;
    held.stop().await;
    assert_eq!(
        h.count("memory_note_chunks where text = 'of nobody'").await,
        0
    );
}

/// The points of chunks, from Postgres.
async fn stored(h: &Harness, chunks: &[Uuid]) -> Vec<Point> {
    let version = &h.pipeline.version.name;
    let store = &h.pipeline.serving.store;
    let chunks = store.live_chunks_by_id(version, chunks).await.unwrap();
    let point = |chunk: LiveChunk| Point {
        payload: elf::serving::payload(&chunk, version),
        vector: chunk.vector,
        lead: String::new(),
        text: chunk.text.unwrap(),
    };
    chunks.into_iter().map(point).collect()
}

async fn put(h: &Harness, points: Vec<Point>) {
    let collection = h.collection().await;
    let upto = UpsertMode::UpTo(i64::from(u32::MAX));
    let put = h.pipeline.serving.index.upsert(&collection, &points, upto);
    put.await.unwrap();
}

/// The points of a commit that no ack has followed are unknown: they may be of the text before.
#[tokio::test]
async fn after_a_text_that_did_not_arrive_labels_come_with_it() {
    let mut h = Harness::start().await;
    let note = indexed(&h).await;
    let engine = h.pipeline.serving.index.clone();
    for verb in [Verb::Upsert, Verb::Relabel] {
        let failing = Hooked::over(&engine);
        failing.fail(When::Before, verb, no_answer());
        h.pipeline.serving.index = failing.clone();
        if verb == Verb::Upsert {
            h.edit(note, &sentences(300, "another story, as long"))
                .await;
        }
        move_to(&h, note, "team").await;
        let working = h.work();
        eventually(async || failing.calls(verb) > 0).await;
        working.stop().await;
        h.pipeline.serving.index = engine.clone();
        move_to(&h, note, "world").await;
        h.expire_leases().await;
        h.drain_with_retries().await;
        h.assert_exact().await;
    }
}

fn no_answer() -> IndexError {
    IndexError::Unavailable {
        engine: "the engine".into(),
        reason: "it did not answer in time".into(),
    }
}

/// The new collection does not have the points yet.
#[tokio::test]
async fn a_collection_that_is_being_filled_gets_whole_points() {
    let h = Harness::start().await;
    let note = indexed(&h).await;
    let index = Hooked::over(&h.pipeline.serving.index);
    let filling = index.halt(When::Before, Verb::Upsert);
    let serving = Serving {
        index: index.clone(),
        ..h.pipeline.serving.clone()
    };
    let options = rebuild::Options {
        swap_last: false,
        take_alias: false,
        keep_old: false,
        restart: false,
        notice: Arc::new(|_| {}),
    };
    let rebuilding = tokio::spawn(async move {
        rebuild::run(&serving, &options, Arc::default(), CancellationToken::new()).await
    });
    filling.reached_by(1).await;
    move_to(&h, note, "team").await;
    h.drain().await;
    filling.open();
    rebuilding.await.unwrap().unwrap();
    h.assert_exact().await;
}
