//! The worker loses no change that the outbox announces, and a change that no search can see
//! inserts no outbox row.

use elf::index::Filter;
use elf::worker::Checkpoint;

use crate::support::eventually;
use crate::support::harness::{Harness, sentences};

#[tokio::test]
async fn a_commit_after_the_claim_is_not_lost() {
    for stage in [
        Checkpoint::Claimed,
        Checkpoint::Chunked,
        Checkpoint::Embedded,
        Checkpoint::Committed,
        Checkpoint::Upserted,
        Checkpoint::Pruned,
    ] {
        let h = Harness::start().await;
        let note = h.insert("first words").await;
        let held = h.held_at(stage).await;
        h.edit(note, "second words").await;
        held.open();
        eventually(async || h.count("indexing_outbox").await == 0).await;
        held.stop().await;
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
async fn a_row_deleted_while_it_is_indexed_leaves_nothing() {
    for stage in [
        Checkpoint::Claimed,
        Checkpoint::Chunked,
        Checkpoint::Embedded,
        Checkpoint::Committed,
        Checkpoint::Upserted,
    ] {
        let h = Harness::start().await;
        let note = h.insert(&sentences(10, "short lives")).await;
        let held = h.held_at(stage).await;
        h.delete(note).await;
        held.open();
        eventually(async || h.count("indexing_outbox").await == 0).await;
        held.stop().await;
        h.assert_converged().await;
        assert_eq!(h.points_of(note).await, 0, "{stage:?}");
    }
}

#[tokio::test]
async fn a_tenant_and_a_text_are_enough_for_a_note() {
    let h = Harness::start().await;
    let insert = "insert into memory_notes (tenant_id, text) values ('t', 'The kettle sings.')
                  returning project_id, agent_id, scope, type";
    let labels: (String, String, String, String) =
        sqlx::query_as(insert).fetch_one(&h.pool).await.unwrap();
    let expected = ["default", "default", "shared", "note"].map(str::to_owned);
    assert_eq!(<[String; 4]>::from(labels), expected);
    h.drain().await;
    h.assert_converged().await;
    assert_eq!(h.count("memory_note_chunks").await, 1);
}

#[tokio::test]
async fn a_plain_insert_into_the_outbox_is_enough() {
    let h = Harness::start().await;
    let note = h.insert("indexed already").await;
    h.drain().await;
    h.pipeline
        .serving
        .index
        .delete(
            &h.pipeline.serving.alias,
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
