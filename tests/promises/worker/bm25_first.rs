//! `worker.bm25_first`: a note whose vectors cannot be made yet is found by keyword.

use std::sync::Arc;

use elf::cli::wiring;
use elf::index::{Filter, UpsertMode};
use elf::rebuild;
use elf::search::{Answer, Missing, Request};
use elf::serving::CollectionTarget;
use elf::store::Depth;
use elf::verify;
use elf::worker::Checkpoint;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::support::embedding_server::Behaviour;
use crate::support::eventually;
use crate::support::harness::{Findings, Harness, sentences};

async fn harness() -> Harness {
    Harness::start_with(|toml| toml.replace("[worker]", "[worker]\nbm25_first = true")).await
}

async fn search(h: &Harness, text: &str) -> Answer {
    let searcher = wiring::searcher(&h.pipeline, &h.config).await.unwrap();
    searcher.search(&Request::hybrid(text, 10)).await.unwrap()
}

/// The notes that a search finds by a word.
async fn found_by(h: &Harness, word: &str) -> Vec<Uuid> {
    let answer = search(h, word).await;
    let with_word = answer.items.iter().filter(|item| item.bm25 > 0.0);
    with_word.map(|item| item.note_id).collect()
}

/// Compares the points with the chunks, vectors too.
async fn assert_no_drift(h: &Harness) {
    let found = Findings::default();
    let report = h.verify(&found.deep()).await;
    assert_eq!(report.drift(), 0, "{report:?}\n{}", found.all().join("\n"));
}

/// Works until the outbox is empty. The provider is back, and the worker does not know it yet.
async fn catch_up(h: &Harness) {
    let working = h.work();
    eventually(async || h.count("indexing_outbox").await == 0).await;
    working.stop().await;
}

async fn without_vectors(h: &Harness) -> i64 {
    h.count("memory_note_chunks where awaits_vector").await
}

#[tokio::test]
async fn while_the_provider_is_down_new_and_changed_notes_are_found_by_keyword() {
    let h = harness().await;
    let edited = h.insert(&sentences(12, "the okapi")).await;
    let relabelled = h.insert("The ibex stays as it is.").await;
    h.drain().await;

    h.provider.always(Behaviour::Status(503));
    let new = h.insert(&sentences(12, "the zebra")).await;
    let deleted = h.insert("The quagga is gone soon.").await;
    h.edit(edited, &sentences(9, "the gnu")).await;
    let working = h.work();
    for (word, note) in [("zebra", new), ("gnu", edited), ("quagga", deleted)] {
        eventually(async || found_by(&h, word).await == [note]).await;
    }
    assert!(found_by(&h, "okapi").await.is_empty(), "the old text");
    let answer = search(&h, "zebra").await;
    assert_eq!(answer.degraded[0].code, Missing::QueryVector);
    assert!(without_vectors(&h).await > 4);
    assert_no_drift(&h).await;

    // What was deleted or moved meanwhile, is.
    h.delete(deleted).await;
    for note in [new, relabelled] {
        h.execute(
            "update memory_notes set tenant_id = $2 where note_id = $1",
            note,
            "u",
        )
        .await;
    }
    eventually(async || h.points_of(deleted).await == 0).await;
    for note in [new, relabelled] {
        let moved = Filter {
            note_ids: Some(vec![note]),
            keywords: [("tenant_id".to_owned(), "u".to_owned())].into(),
            ..Filter::default()
        };
        let serving = &h.pipeline.serving;
        let count = async || serving.index.count(&serving.alias, &moved).await.unwrap();
        eventually(async || count().await > 0).await;
        assert_eq!(count().await, h.points_of(note).await);
    }
    working.stop().await;
    assert_no_drift(&h).await;

    // Without the index too: a rebuild embeds nothing, and has these points.
    let serving = h.rebuilds_with(h.pipeline.serving.index.clone());
    let options = rebuild::Options {
        swap_last: false,
        take_alias: false,
        keep_old: false,
        restart: false,
        notice: Arc::new(|_| {}),
    };
    rebuild::run(&serving, &options, Arc::default(), CancellationToken::new())
        .await
        .unwrap();
    assert_eq!(found_by(&h, "gnu").await, [edited]);
    assert_no_drift(&h).await;
    assert_eq!(h.count("indexing_outbox where attempts > 0").await, 0);

    let refused = h.provider.texts_seen().len();
    h.provider.heal();
    catch_up(&h).await;
    h.assert_exact().await;
    assert_eq!(without_vectors(&h).await, 0);
    let mut texts = h.provider.texts_seen().split_off(refused);
    let sent = texts.len();
    texts.sort();
    texts.dedup();
    assert_eq!(texts.len(), sent, "each text once");
    assert!(texts.iter().any(|text| text.contains("zebra")), "{texts:?}");
    assert!(texts.iter().all(|text| !text.contains("ibex")), "{texts:?}");
}

#[tokio::test]
async fn a_text_that_awaited_its_vector_is_embedded_once() {
    let h = harness().await;
    h.provider.always(Behaviour::Status(503));
    for _ in 0..40 {
        h.insert("Forty notes have this text.").await;
    }
    let working = h.work();
    eventually(async || without_vectors(&h).await == 40).await;
    working.stop().await;
    h.provider.heal();
    let refused = h.provider.texts_seen().len();
    catch_up(&h).await;
    h.insert("Forty notes have this text.").await;
    h.drain().await;
    assert_eq!(h.provider.texts_seen().len() - refused, 1);
    h.assert_exact().await;
}

#[tokio::test]
async fn a_note_that_is_found_by_keyword_is_not_written_again_and_again() {
    let h = harness().await;
    h.provider.always(Behaviour::Status(503));
    let note = h.insert(&sentences(12, "the zebra")).await;
    let working = h.work();
    eventually(async || h.points_of(note).await > 1).await;
    let first: i64 = sqlx::query_scalar("select revision from note_index_state")
        .fetch_one(&h.pool)
        .await
        .unwrap();
    // Each round claims all notes that are due.
    let token = "select max(lease_token) from note_index_state where note_id = $1";
    eventually(async || {
        let token: i64 = sqlx::query_scalar(token)
            .bind(note)
            .fetch_one(&h.pool)
            .await
            .unwrap();
        token > first + 3
    })
    .await;
    let revision = format!("note_index_state where revision = {first}");
    assert_eq!(h.count(&revision).await, 1);
    working.stop().await;
}

#[tokio::test]
async fn a_crash_at_any_stage_loses_no_word_and_no_vector() {
    for checkpoint in [
        Checkpoint::Chunked,
        Checkpoint::Committed,
        Checkpoint::Upserted,
        Checkpoint::Pruned,
    ] {
        let h = harness().await;
        let edited = h.insert(&sentences(9, "the okapi")).await;
        h.drain().await;
        h.provider.always(Behaviour::Status(503));
        h.edit(edited, &sentences(6, "the gnu")).await;
        let new = h.insert(&sentences(6, "the zebra")).await;
        h.held_at(checkpoint).await.kill().await;
        h.expire_leases().await;
        let working = h.work();
        for (word, note) in [("zebra", new), ("gnu", edited)] {
            eventually(async || found_by(&h, word).await == [note]).await;
        }
        working.stop().await;
        assert_no_drift(&h).await;

        // And killed again on the way to the vectors.
        h.provider.heal();
        h.held_at(checkpoint).await.kill().await;
        h.expire_leases().await;
        catch_up(&h).await;
        h.assert_exact().await;
    }
}

#[tokio::test]
async fn a_text_that_the_provider_rejects_in_the_end_is_still_found_by_keyword() {
    let h = harness().await;
    h.provider.always(Behaviour::Status(503));
    let note = h.insert("A zebra with arsenic.").await;
    let working = h.work();
    eventually(async || found_by(&h, "zebra").await == [note]).await;
    working.stop().await;
    h.provider.heal();
    h.provider.poison("arsenic", Behaviour::Status(400));
    let working = h.work();
    let dead = "indexing_outbox where status = 'DEAD'";
    eventually(async || h.count(dead).await == 1).await;
    working.stop().await;
    assert_eq!(found_by(&h, "zebra").await, [note]);
    assert_no_drift(&h).await;
}

#[tokio::test]
async fn without_the_setting_a_new_text_waits_for_its_vectors() {
    let h = Harness::start().await;
    h.provider.always(Behaviour::Status(503));
    let note = h.insert("The zebra waits.").await;
    let working = h.work();
    eventually(async || h.pipeline.provider.state().error().is_some()).await;
    working.stop().await;
    assert_eq!(h.points_of(note).await, 0);
    assert_eq!(h.count("memory_note_chunks").await, 0);
}

/// Qdrant could keep it from the point of the former text.
#[tokio::test]
async fn a_vector_that_a_waiting_point_should_not_have_is_found_by_a_plain_verify() {
    let h = harness().await;
    h.provider.always(Behaviour::Status(503));
    h.insert("The zebra waits for its vector.").await;
    let working = h.work();
    eventually(async || without_vectors(&h).await == 1 && h.points().await.len() == 1).await;
    working.stop().await;
    // Verify leaves alone what a worker will write.
    sqlx::query("delete from indexing_outbox")
        .execute(&h.pool)
        .await
        .unwrap();
    let target = CollectionTarget {
        store: h.pipeline.serving.store.clone(),
        index: h.pipeline.serving.index.clone(),
        version: h.pipeline.version.name.clone(),
        collection: h.collection().await,
        writes: Default::default(),
    };
    let verified = async || verify::points(&target, &verify::Options::repairing()).await;
    assert_eq!(verified().await.unwrap().drift(), 0);

    // The same point, with a vector.
    let (store, version) = (&target.store, &target.version);
    let chunks = store.live_chunks(version, Uuid::nil(), Uuid::max(), 9, 1 << 20, Depth::Whole);
    let mut points = target.points(chunks.await.unwrap()).to_vec();
    points[0].vector = Some(vec![1.0; h.pipeline.version.dim]);
    let upsert = (target.index).upsert(&target.collection, &points, UpsertMode::NotNewer);
    upsert.await.unwrap();
    let report = verified().await.unwrap();
    assert_eq!((report.stale, report.unrepaired()), (1, 0), "{report:?}");
    assert_eq!(h.points().await[0].vector, None);
    assert_eq!(verified().await.unwrap().drift(), 0);
}
