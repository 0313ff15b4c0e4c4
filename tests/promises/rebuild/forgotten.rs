//! Registrations and collections that only one of Postgres and the engine still has.

use std::sync::Arc;

use elf::rebuild::{self, Options};
use elf::verify;
use tokio_util::sync::CancellationToken;

use crate::support::embedding_server::Behaviour;
use crate::support::eventually;
use crate::support::harness::{Findings, Harness, sentences};
use crate::support::hooked::{Hooked, Verb, When};

fn options(keep_old: bool) -> Options {
    Options {
        keep_old,
        ..super::options()
    }
}

#[tokio::test]
async fn nothing_is_acked_while_no_collection_is_registered() {
    let h = Harness::start().await;
    h.insert(&sentences(4, "matter")).await;
    h.drain().await;
    let working = h.work();
    let old = h.collection().await;
    h.pipeline
        .serving
        .index
        .drop_collection(&old)
        .await
        .unwrap();
    let hooked = Hooked::over(&h.pipeline.serving.index);
    let halt = hooked.halt(When::Before, Verb::Upsert);
    let site = h.rebuilds_with(hooked.clone());
    let running = tokio::spawn({
        let site = site.clone();
        async move {
            rebuild::run(
                &site,
                &options(false),
                Arc::default(),
                CancellationToken::new(),
            )
            .await
        }
    });
    halt.reached_by(1).await;
    running.abort();
    running.await.unwrap_err();
    hooked.heal();
    h.expire_job_lease().await;
    rebuild::drop_leftovers(&site).await.unwrap();
    h.insert("A note after the drop.").await;
    eventually(async || h.count("indexing_outbox").await == 0).await;
    working.stop().await;
    h.assert_exact().await;
}

#[tokio::test]
async fn a_dead_lettered_note_is_left_alone() {
    let h = Harness::start().await;
    let note = h.insert("A fine note.").await;
    h.drain().await;
    h.provider.poison("venom", Behaviour::Status(400));
    h.execute(
        "update memory_notes set text = $2, updated_at = now() where note_id = $1",
        note,
        "It is venom now.",
    )
    .await;
    h.drain_with_retries().await;
    assert_eq!(h.count("indexing_outbox where status = 'DEAD'").await, 1);
    let found = Findings::default();
    let report = h.verify(&found.deep()).await;
    assert_eq!(report.drift(), 0, "{report:?} {:?}", found.all());
}

#[tokio::test]
async fn an_alias_at_a_kept_collection_is_pointed_back_by_verify() {
    let h = Harness::start().await;
    h.insert(&sentences(4, "matter")).await;
    h.drain().await;
    let old = h.collection().await;
    let site = h.rebuilds_with(h.pipeline.serving.index.clone());
    rebuild::run(
        &site,
        &options(true),
        Arc::default(),
        CancellationToken::new(),
    )
    .await
    .unwrap();
    h.pipeline
        .serving
        .index
        .point_alias(&h.pipeline.serving.alias, &old)
        .await
        .unwrap();
    h.insert("What only the new one has.").await;
    h.drain().await;
    let t = &h.pipeline;
    let look = |options: verify::Options| async move { verify::run(&t.serving, &options).await };
    let said = look(Findings::default().deep()).await.unwrap_err();
    assert!(said.to_string().contains(&old), "{said}");
    assert_eq!(look(verify::Options::repairing()).await.unwrap().drift(), 0);
    h.assert_exact().await;
}

#[tokio::test]
async fn a_postgres_from_before_a_rebuild_can_be_rebuilt() {
    let h = Harness::start().await;
    h.insert(&sentences(4, "matter")).await;
    h.drain().await;
    let old = h.collection().await;
    let site = h.rebuilds_with(h.pipeline.serving.index.clone());
    rebuild::run(
        &site,
        &options(false),
        Arc::default(),
        CancellationToken::new(),
    )
    .await
    .unwrap();
    // As the backup has it.
    sqlx::query("update index_collections set collection = $1")
        .bind(&old)
        .execute(&h.pool)
        .await
        .unwrap();
    let t = &h.pipeline;
    let said = verify::run(&t.serving, &verify::Options::repairing()).await;
    assert!(said.unwrap_err().to_string().contains("elf rebuild"));
    let again = async |take_alias| {
        let options = rebuild::Options {
            take_alias,
            ..options(false)
        };
        rebuild::run(&site, &options, Arc::default(), CancellationToken::new()).await
    };
    // The alias could as well be that of another database.
    let said = again(false).await.unwrap_err().to_string();
    assert!(said.contains("--take-alias"), "{said}");
    again(true).await.unwrap();
    h.assert_exact().await;
}

#[tokio::test]
async fn a_rebuild_that_lost_its_collection_retires_no_other() {
    let h = Harness::start().await;
    h.insert(&sentences(4, "matter")).await;
    h.drain().await;
    let t = &h.pipeline;
    let done = t
        .serving
        .store
        .finish_rebuild(&h.dead_job().await, "notes__77", &t.version.name)
        .await;
    assert!(!done.unwrap());
    let registered = t.serving.store.registered_collections().await.unwrap();
    assert!(registered[0].is_active(), "{registered:?}");
}
