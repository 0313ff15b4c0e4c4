//! ELF serves a version only once it is complete and equal to Postgres, and one job runs at
//! a time.

use std::sync::Arc;

use elf::index::Filter;
use elf::reindex::{ReindexError, Then};
use elf::serving::{self, Job, ServingError};
use elf::store::Lifecycle;

use super::{alias_of, assert_in_step, beside, collection_of, smaller_chunks};
use crate::support::embedding_server::Behaviour;
use crate::support::harness::{Harness, sentences};

#[tokio::test]
async fn a_swap_is_refused_while_notes_are_dead_lettered() {
    let h = Harness::start().await;
    let note = h
        .insert(&format!("{} arsenic", sentences(4, "good things")))
        .await;
    h.insert("wholesome").await;
    h.drain().await;
    h.provider.poison("arsenic", Behaviour::Status(400));
    let next = beside(&h, |config| {
        config.providers.embedding.model = "picky".into()
    })
    .await;
    let error = next.run(Then::Swap).await.unwrap_err();
    assert!(matches!(error, ReindexError::DeadLetters(1)), "{error:?}");
    assert_eq!(next.state().await, Some(Lifecycle::Building));
    assert_eq!(alias_of(&h).await, collection_of(&h.pipeline).await);

    // An operator who purges the dead letter decides to swap without the note.
    h.pipeline
        .serving
        .store
        .purge_dead(Some(&[note]))
        .await
        .unwrap();
    next.run(Then::Swap).await.unwrap();
    assert_eq!(next.state().await, Some(Lifecycle::Active));
    assert_eq!(h.points_of(note).await, 0);
    h.provider.heal();
    h.edit(note, "sugar").await;
    next.drain().await;
    assert_in_step(&h, &next.pipeline).await;
}

#[tokio::test]
async fn a_swap_is_refused_on_drift() {
    let h = Harness::start().await;
    let note = h.insert("soon to be missing").await;
    h.insert("another").await;
    h.drain().await;
    let next = smaller_chunks(&h).await;
    next.run(Then::Wait).await.unwrap();
    let collection = collection_of(&next.pipeline).await;
    let of_note = Filter {
        note_ids: Some(vec![note]),
        ..Filter::default()
    };
    h.pipeline
        .serving
        .index
        .delete(&collection, &of_note)
        .await
        .unwrap();
    let error = next.run(Then::Swap).await.unwrap_err();
    assert!(
        matches!(&error, ReindexError::Drift(found) if found.missing == 1),
        "{error:?}"
    );
    assert_eq!(next.state().await, Some(Lifecycle::Building));
    assert_eq!(alias_of(&h).await, collection_of(&h.pipeline).await);
}

#[tokio::test]
async fn an_alias_elsewhere_is_pointed_back_or_refused() {
    let h = Harness::start().await;
    h.insert("here").await;
    h.drain().await;
    let own = alias_of(&h).await;
    let next = smaller_chunks(&h).await;
    next.run(Then::Wait).await.unwrap();
    let index = &h.pipeline.serving.index;
    let theirs = collection_of(&next.pipeline).await;
    index
        .point_alias(&h.pipeline.serving.alias, &theirs)
        .await
        .unwrap();
    serving::ensure_ready(&next.pipeline.serving, &next.pipeline.version)
        .await
        .unwrap();
    assert_eq!(
        alias_of(&h).await,
        theirs,
        "not for a version that is not served to say"
    );
    serving::ensure_ready(&h.pipeline.serving, &h.pipeline.version)
        .await
        .unwrap();
    assert_eq!(alias_of(&h).await, own);

    index
        .create_collection(
            "foreign",
            &serving::spec(&h.pipeline.serving, &h.pipeline.version),
        )
        .await
        .unwrap();
    index
        .point_alias(&h.pipeline.serving.alias, "foreign")
        .await
        .unwrap();
    let error = serving::ensure_ready(&h.pipeline.serving, &h.pipeline.version)
        .await
        .unwrap_err();
    assert!(
        matches!(&error, ServingError::ForeignAlias { target, .. } if target == "foreign"),
        "{error:?}"
    );
}

#[tokio::test]
async fn one_job_at_a_time() {
    let h = Harness::start().await;
    h.insert("busy").await;
    h.drain().await;
    let next = smaller_chunks(&h).await;
    let job = Job::take(
        &h.pipeline.serving.store,
        "rebuild",
        "notes__2",
        Arc::default(),
    )
    .await
    .unwrap();
    let error = next.run(Then::Wait).await.unwrap_err();
    assert!(
        matches!(&error, ReindexError::Serving(ServingError::JobRunning(other)) if other.kind == "rebuild"),
        "{error:?}"
    );
    assert_eq!(next.state().await, None, "nothing was begun");
    job.end().await;
    next.run(Then::Wait).await.unwrap();
}

#[tokio::test]
async fn a_reindex_to_the_served_version_has_nothing_to_do() {
    let h = Harness::start().await;
    h.insert("content").await;
    h.drain().await;
    let same = beside(&h, |_| {}).await;
    let report = same.run(Then::Swap).await.unwrap();
    assert_eq!((report.state, report.work.notes), (Lifecycle::Active, 0));
    assert_eq!(h.count("index_versions").await, 1);
}
