//! A version that is built answers a share of the searches, until it finds less.

use std::sync::Arc;

use elf::canary::{Canary, Tallies};
use elf::cli::wiring;
use elf::index::Filter;
use elf::reindex::Then;
use elf::search::{Request, Searcher};
use serde_json::json;
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use super::{Beside, alias_of, collection_of, smaller_chunks};
use crate::support::eventually;
use crate::support::harness::Harness;
use crate::support::site::Site;

const KEY: Uuid = Uuid::nil();

/// A process whose second configuration is that of `next`.
async fn canary(h: &Harness, next: &Beside) -> Arc<Canary> {
    let collection = collection_of(&next.pipeline).await;
    let (pipeline, config) = (next.pipeline.clone(), next.config.clone());
    let open = move |_| -> futures::future::BoxFuture<'static, anyhow::Result<Searcher>> {
        let (pipeline, config) = (pipeline.clone(), config.clone());
        let collection = collection.clone();
        Box::pin(async move {
            let searcher = wiring::searcher(&pipeline, &config).await?;
            Ok(searcher.in_collection(collection))
        })
    };
    let store = h.pipeline.serving.store.clone();
    let limits = h.config.quality.canary.clone();
    Arc::new(Canary::new(store, limits, Box::new(open)))
}

#[tokio::test]
async fn a_version_that_finds_less_answers_no_more_searches() {
    let h = Harness::start().await;
    let mut notes = Vec::new();
    for n in 0..30 {
        notes.push(
            h.insert(&format!("The zebra{n} sleeps under the baobab."))
                .await,
        );
    }
    h.drain().await;
    let next = smaller_chunks(&h).await;
    next.run(Then::Wait).await.unwrap();
    let canary = canary(&h, &next).await;
    let served = wiring::searcher(&h.pipeline, &h.config).await.unwrap();
    let by_canary = async |query: String| {
        let request = Request::hybrid(&query, 5);
        let (answer, by_canary) = canary.search(&served, KEY, &request).await.unwrap();
        assert!(answer.degraded.is_empty());
        by_canary
    };
    let ask = async |from: usize| {
        let mut answered = 0;
        for n in from..from + 300 {
            answered += usize::from(by_canary(format!("zebra{} question {n}", n % 30)).await);
        }
        answered
    };
    let _watching = AbortOnDropHandle::new(tokio::spawn(canary.clone().watch()));
    assert_eq!(ask(0).await, 0, "no canary runs");

    let store = &h.pipeline.serving.store;
    let version = &next.pipeline.version.name;
    let served_version = &h.pipeline.version.name;
    let empty = json!(Tallies::default());
    assert!(
        !store
            .start_canary(served_version, 0.5, &empty)
            .await
            .unwrap()
    );
    assert!(store.start_canary(version, 0.5, &empty).await.unwrap());
    eventually(async || {
        by_canary("zebra1 question 1".into()).await
            || by_canary("zebra2 question 2".into()).await
            || by_canary("zebra3 question 3".into()).await
    })
    .await;
    // The same query is answered by the same version, and half of them by either.
    let first = by_canary("zebra7 of the morning".into()).await;
    for _ in 0..5 {
        assert_eq!(by_canary("zebra7 of the morning".into()).await, first);
    }
    let answered = ask(0).await;
    assert!((100..200).contains(&answered), "{answered} of 300");
    let row = || async { store.canary().await.unwrap().unwrap() };
    let enough = async || Tallies::read(row().await.tallies).canary.searches > 100;
    eventually(enough).await;
    assert_eq!((row().await.share, row().await.ended), (0.5, None));

    // It lost its points.
    let of_notes = Filter {
        note_ids: Some(notes),
        ..Filter::default()
    };
    let index = &h.pipeline.serving.index;
    let collection = collection_of(&next.pipeline).await;
    index.delete(&collection, &of_notes).await.unwrap();
    ask(300).await;
    eventually(async || row().await.share == 0.0).await;
    let ended = row().await.ended.unwrap();
    assert!(ended.contains("relevance: "), "{ended}");
    assert_eq!(ask(600).await, 0);

    // It answers all, and its collection is gone: the served version steps in, whole answers and all.
    assert!(store.start_canary(version, 1.0, &empty).await.unwrap());
    eventually(async || by_canary("zebra1 question 1".into()).await).await;
    index.drop_collection(&collection).await.unwrap();
    assert_eq!(ask(900).await, 0);
    eventually(async || row().await.share == 0.0).await;
    let ended = row().await.ended.unwrap();
    assert!(ended.contains("errors: "), "{ended}");
    assert_eq!(alias_of(&h).await, collection_of(&h.pipeline).await);
}

#[tokio::test]
async fn a_canary_begins_and_ends_on_the_command_line() {
    let site = Site::start().await;
    site.note("The zebra sleeps.").await;
    site.elf(&["worker", "--once"]).await.exits(0);
    let none = site.elf(&["reindex", "canary"]).await.exits(1);
    none.says(&["there is no canary", "elf reindex canary 10%"]);
    let served = site.elf(&["reindex", "canary", "10%"]).await.exits(1);
    served.says(&["is not built yet, or it is served"]);
    site.elf(&["reindex", "canary", "ten"])
        .await
        .exits(2)
        .says(&["write percent, such as 10%"]);

    site.configure("max_tokens = 32", "max_tokens = 24");
    site.elf(&["reindex", "canary", "10%"])
        .await
        .exits(1)
        .says(&["is not built yet"]);
    site.elf(&["reindex"]).await.exits(0);
    let begun = site.json(&["reindex", "canary", "12.5%"]).await;
    assert_eq!(begun["share"], 0.125);
    let report = site.json(&["reindex", "canary"]).await;
    assert_eq!(
        (&report["version"], &report["share"]),
        (&begun["version"], &json!(0.125))
    );
    assert_eq!(report["built"]["searches"], 0);
    let printed = site.elf(&["reindex", "canary"]).await.exits(0).stdout;
    assert!(
        printed.contains("answers 12.5% of the searches"),
        "{printed}"
    );
    site.elf(&["reindex", "canary", "0%"]).await.exits(0);
    site.elf(&["reindex", "canary", "0"])
        .await
        .exits(1)
        .says(&["no canary of"]);
    // Served, it needs none.
    site.elf(&["reindex", "--swap"]).await.exits(0);
    site.elf(&["reindex", "canary"]).await.exits(1);
}
