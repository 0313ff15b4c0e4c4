//! A new version embeds only texts that have no vector yet, and vectors of two dimensions
//! never mix.

use std::collections::BTreeSet;

use elf::config::{Boundaries, Config};
use elf::embed::EmbedError;
use elf::reindex::{self, ReindexError, Then};
use elf::serving::Serving;
use elf::store::Lifecycle;
use elf::worker::Pipeline;

use super::{assert_in_step, beside, collection_of, points_in, state_of};
use crate::support::embedding_server::{Behaviour, EmbeddingServer};
use crate::support::harness::{Harness, sentences};

#[tokio::test]
async fn a_change_of_the_overlap_embeds_only_texts_never_seen() {
    a_change_embeds_only_texts_never_seen(|config| config.chunking.settings.overlap_tokens = 0)
        .await;
}

#[tokio::test]
async fn a_change_of_the_boundaries_embeds_only_texts_never_seen() {
    a_change_embeds_only_texts_never_seen(|config| {
        config.chunking.settings.boundaries = Boundaries::Stable
    })
    .await;
}

#[tokio::test]
async fn a_change_of_what_is_left_out_embeds_only_texts_never_seen() {
    a_change_embeds_only_texts_never_seen(|config| {
        let chunking = &mut config.chunking;
        chunking.settings.exclude_headings = vec!["license".into()];
        let of_type = chunking.settings.clone();
        chunking.by_type.insert("log".into(), of_type);
        chunking.settings.overlap_tokens = 0;
    })
    .await;
}

async fn a_change_embeds_only_texts_never_seen(change: impl FnOnce(&mut Config)) {
    let h = Harness::start().await;
    for i in 0..6 {
        h.insert(&sentences(1 + 3 * i, &format!("topic {i}"))).await;
    }
    h.drain().await;
    let paid: BTreeSet<String> = h.provider.texts_seen().into_iter().collect();
    let requests = h.provider.texts_seen().len();

    let next = beside(&h, change).await;
    let counts = elf::serving::Progress::default();
    let Pipeline {
        serving: Serving { store, .. },
        chunker,
        version,
        ..
    } = &next.pipeline;
    let estimate = reindex::estimate(store, chunker, version, &counts)
        .await
        .unwrap();
    assert_eq!(next.state().await, None, "an estimate registers nothing");
    let report = next.run(Then::Wait).await.unwrap();
    assert_in_step(&h, &next.pipeline).await;

    let new = h.provider.texts_seen()[requests..].to_vec();
    assert!(!new.is_empty() && report.work.reused > 0, "{report:?}");
    for text in &new {
        assert!(!paid.contains(text), "{text:?} was paid for before");
    }
    assert_eq!(new.iter().collect::<BTreeSet<_>>().len(), new.len());
    assert_eq!(report.work.embedded, new.len() as u64);
    assert_eq!(
        (
            estimate.notes,
            estimate.chunks,
            estimate.known,
            estimate.to_embed,
            estimate.tokens
        ),
        (
            6,
            report.work.chunks,
            report.work.reused,
            report.work.embedded,
            report.work.tokens
        )
    );
    assert!(report.work.tokens > report.work.embedded);
}

#[tokio::test]
async fn versions_of_different_dimension_live_side_by_side() {
    let h = Harness::start().await;
    h.insert(&sentences(9, "two sizes")).await;
    h.drain().await;
    let larger = EmbeddingServer::start_with_dim(12).await;
    let next = beside(&h, |config| {
        config.providers.embedding.api_base = larger.url().to_owned();
        config.providers.embedding.model = "larger".to_owned();
    })
    .await;
    assert_eq!(
        next.pipeline.version.dim, 12,
        "asked of the new model, not of the old version"
    );
    let report = next.run(Then::Swap).await.unwrap();
    assert_eq!(report.state, Lifecycle::Active);
    assert_eq!(report.work.reused, 0, "vectors of another model are no use");
    assert_in_step(&h, &next.pipeline).await;
    let dims: Vec<i32> =
        sqlx::query_scalar("select distinct embedding_dim from note_chunk_embeddings order by 1")
            .fetch_all(&h.pool)
            .await
            .unwrap();
    assert_eq!(dims, [8, 12]);
    // The dimension is registered now: ELF need not ask the provider.
    let asked = larger.requests();
    let again = beside(&h, |config| config.clone_from(&next.config)).await;
    assert_eq!((again.pipeline.version.dim, larger.requests()), (12, asked));
}

#[tokio::test]
async fn an_answer_of_another_dimension_is_a_configuration_error_and_writes_no_point() {
    let h = Harness::start().await;
    for i in 0..5 {
        h.insert(&format!("note {i}")).await;
    }
    h.drain().await;
    let next = beside(&h, |config| {
        config.providers.embedding.model = "fickle".into()
    })
    .await;
    h.provider.always(Behaviour::WrongDimension);
    let error = next.run(Then::Swap).await.unwrap_err();
    assert!(
        matches!(&error, ReindexError::Embed(EmbedError::Config { reason }) if reason.contains("9 dimensions where 8")),
        "{error:?}"
    );
    assert_eq!(
        points_in(&next.pipeline, &collection_of(&next.pipeline).await)
            .await
            .len(),
        0
    );
    assert_eq!(h.count("indexing_outbox where attempts > 0").await, 0);
    assert_eq!(state_of(&h.pipeline).await, Some(Lifecycle::Active));

    h.provider.heal();
    let again = beside(&h, |config| config.clone_from(&next.config)).await;
    again.run(Then::Swap).await.unwrap();
    assert_in_step(&h, &again.pipeline).await;
}
