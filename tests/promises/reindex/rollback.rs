//! A retired version is kept as it was: ELF rolls back to it at once, builds it again, or
//! drops it.

use elf::reindex::{self, ReindexError, Then};
use elf::serving::{self, ServingError};
use elf::store::Lifecycle;
use uuid::Uuid;

use super::{alias_of, assert_in_step, beside, collection_of, points_in, smaller_chunks};
use crate::support::eventually;
use crate::support::harness::{Harness, sentences, spawn};

#[tokio::test]
async fn a_rollback_brings_the_old_answers_back() {
    let h = Harness::start().await;
    let edited = h.insert(&sentences(6, "what will change")).await;
    let deleted = h.insert("what will go").await;
    h.insert("what stays").await;
    h.drain().await;
    let before = points_in(&h.pipeline, &h.pipeline.serving.alias).await;
    let paid = h.provider.texts_seen().len();
    let next = smaller_chunks(&h).await;
    next.run(Then::Swap).await.unwrap();
    assert_eq!(alias_of(&h).await, collection_of(&next.pipeline).await);
    assert!(h.provider.texts_seen().len() > paid);

    h.edit(edited, "changed meanwhile").await;
    h.delete(deleted).await;
    next.drain().await;
    assert_in_step(&h, &next.pipeline).await;
    assert_eq!(
        points_in(&h.pipeline, &collection_of(&h.pipeline).await).await,
        before,
        "what is retired is frozen"
    );

    let done = reindex::rollback(&h.pipeline.serving).await.unwrap();
    assert_eq!(done.version, h.pipeline.version.name);
    assert_eq!(done.retired.as_ref(), Some(&next.pipeline.version.name));
    assert_eq!(done.due, 3, "two notes, and one that is gone");
    let changed: Vec<_> = done
        .settings
        .iter()
        .map(|c| (c.key.as_str(), &c.to))
        .collect();
    assert_eq!(changed, [("chunking.max_tokens", &32.into())]);
    assert_eq!(
        points_in(&h.pipeline, &h.pipeline.serving.alias).await,
        before,
        "at once"
    );

    h.drain().await;
    assert_in_step(&h, &h.pipeline).await;
    assert_eq!(h.points_of(deleted).await, 0);
    let again = reindex::rollback(&h.pipeline.serving).await.unwrap();
    assert_eq!(
        again.version, next.pipeline.version.name,
        "and forward again"
    );
}

#[tokio::test]
async fn a_daemon_whose_version_is_retired_says_so_and_resumes_after_a_rollback() {
    let h = Harness::start().await;
    h.insert("as it was").await;
    h.drain().await;
    let (old, stop, running) = spawn(h.worker());
    let next = smaller_chunks(&h).await;
    next.run(Then::Swap).await.unwrap();
    eventually(async || {
        old.outage()
            .is_some_and(|o| o.reason.contains("is retired"))
    })
    .await;
    let note = h.insert("written for the new version").await;
    next.drain().await;
    assert_in_step(&h, &next.pipeline).await;
    assert_eq!(
        h.count("note_index_state where lease_until is not null")
            .await,
        0
    );

    reindex::rollback(&h.pipeline.serving).await.unwrap();
    eventually(async || old.outage().is_none() && h.points_of(note).await == 1).await;
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
    assert_in_step(&h, &h.pipeline).await;
}

#[tokio::test]
async fn a_drop_frees_all_that_is_not_served_and_nothing_else() {
    let h = Harness::start().await;
    for i in 0..10 {
        h.insert(&sentences(3, &format!("to be freed {i}"))).await;
    }
    h.drain().await;
    let old = (
        h.pipeline.version.name.clone(),
        collection_of(&h.pipeline).await,
    );
    let next = smaller_chunks(&h).await;
    next.run(Then::Swap).await.unwrap();
    let name = next.pipeline.version.name.clone();
    let refused = reindex::drop(&h.pipeline.serving, Some(&name))
        .await
        .unwrap_err();
    assert!(matches!(refused, ReindexError::Refused(_)), "{refused:?}");

    // A drop that died halfway: no rollback to the rest of that version.
    assert!(
        h.pipeline
            .serving
            .store
            .retire_for_good(&h.dead_job().await, &old.0)
            .await
            .unwrap()
    );
    let refused = reindex::rollback(&h.pipeline.serving).await.unwrap_err();
    assert!(refused.to_string().contains("is gone"), "{refused}");

    let dropped = reindex::drop(&h.pipeline.serving, None).await.unwrap();
    assert_eq!(dropped.len(), 1);
    assert_eq!(
        (&dropped[0].version, &dropped[0].collections),
        (&old.0, &vec![old.1.clone()])
    );
    assert!(dropped[0].chunks > 10);
    assert!(
        h.pipeline
            .serving
            .index
            .collection(&old.1)
            .await
            .unwrap()
            .is_none()
    );
    for table in [
        "memory_note_chunks",
        "note_chunk_embeddings",
        "note_embeddings",
        "note_index_state",
        "indexing_outbox",
        "index_versions",
        "index_collections",
    ] {
        let of_old = format!("{table} where embedding_version = '{}'", old.0);
        assert_eq!(h.count(&of_old).await, 0, "{table}");
    }
    assert_in_step(&h, &next.pipeline).await;
    assert_eq!(reindex::drop(&h.pipeline.serving, None).await.unwrap(), []);
    let refused = reindex::rollback(&h.pipeline.serving).await.unwrap_err();
    assert!(
        refused.to_string().contains("nothing to roll back to"),
        "{refused}"
    );

    // A worker of the old version that still runs finds nothing and writes nothing.
    h.insert("for the new one only").await;
    let error = serving::ensure_ready(&h.pipeline.serving, &h.pipeline.version)
        .await
        .unwrap_err();
    assert!(matches!(error, ServingError::Mismatch(_)), "{error:?}");
    let store = &h.pipeline.serving.store;
    let claim = store
        .claim(
            &old.0,
            "late",
            h.config.worker.lease(),
            16,
            1 << 20,
            elf::store::ClaimScope::ALL,
        )
        .await;
    assert!(claim.unwrap().is_none());
    store.requeue(&old.0, &[Uuid::new_v4()]).await.unwrap();
    next.drain().await;
    assert_in_step(&h, &next.pipeline).await;
}

#[tokio::test]
async fn a_retired_version_can_be_built_again_from_where_it_stood() {
    let h = Harness::start().await;
    let note = h.insert(&sentences(5, "to and fro")).await;
    h.drain().await;
    let next = smaller_chunks(&h).await;
    next.run(Then::Swap).await.unwrap();
    h.edit(note, &sentences(6, "to and fro")).await;
    next.drain().await;
    let paid = h.provider.texts_seen().len();

    let back = beside(&h, |_| {}).await;
    assert_eq!(back.state().await, Some(Lifecycle::Retired));
    let report = back.run(Then::Swap).await.unwrap();
    assert_eq!(report.state, Lifecycle::Active);
    assert!(report.work.reused > 0);
    assert!(
        h.provider.texts_seen().len() <= paid + 2,
        "only what is new"
    );
    assert_in_step(&h, &back.pipeline).await;
    assert_eq!(next.state().await, Some(Lifecycle::Retired));
}

#[tokio::test]
async fn a_refused_reindex_leaves_the_rollback_possible() {
    let h = Harness::start().await;
    h.insert("to and fro").await;
    h.drain().await;
    let next = smaller_chunks(&h).await;
    next.run(Then::Swap).await.unwrap();

    let mut back = beside(&h, |_| {}).await;
    back.pipeline.serving.bm25.language = "german".into();
    let refused = back.run(Then::Wait).await.unwrap_err();
    assert!(
        refused.to_string().contains("elf reindex drop"),
        "{refused}"
    );
    assert_eq!(back.state().await, Some(Lifecycle::Retired));
    assert_eq!(h.count("indexing_outbox").await, 0, "nothing was written");
    reindex::rollback(&h.pipeline.serving).await.unwrap();
    assert_eq!(back.state().await, Some(Lifecycle::Active));
}
