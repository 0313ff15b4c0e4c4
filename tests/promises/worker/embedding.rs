//! The worker sends a text to the provider once. A text that Postgres has a vector for costs
//! no request.

use sqlx::{Connection, PgConnection};

use crate::support::embedding_server::Behaviour;
use crate::support::eventually;
use crate::support::harness::{Harness, distance, sentences, spawn};

#[tokio::test]
async fn unchanged_text_is_not_embedded_again() {
    let h = Harness::start().await;
    let note = h.insert(&sentences(20, "the tides")).await;
    h.drain().await;
    let paid = h.provider.texts_seen().len();

    h.pipeline
        .serving
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
async fn a_note_of_many_requests_pays_for_each_text_once_though_some_requests_fail() {
    let few = "timeout_ms = 6000\nmax_batch_inputs = 4\nconcurrency = 1";
    let h = Harness::start_with(|toml| toml.replace("timeout_ms = 6000", few)).await;
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
