//! An alias stands for a collection in every call, and moves from one to another in one step.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use elf::index::{Filter, IndexError, UpsertMode};

use super::EAST;
use crate::setup::{Bench, id, ids, point, query, spec};

pub async fn an_alias_is_as_good_as_a_name(bench: Bench) {
    bench.create().await;
    let alias = bench.other("alias");
    bench.index.point_alias(&alias, &bench.name).await.unwrap();
    assert_eq!(
        bench.index.resolve(&alias).await.unwrap(),
        Some(bench.name.clone())
    );
    assert_eq!(bench.index.resolve(&bench.name).await.unwrap(), None);

    let words = vec![point(1, EAST, "words")];
    bench
        .index
        .upsert(&alias, &words, UpsertMode::NotNewer)
        .await
        .unwrap();
    assert_eq!(
        bench.index.count(&alias, &Filter::default()).await.unwrap(),
        1
    );
    assert_eq!(
        bench
            .index
            .scroll(&alias, None, 10, false)
            .await
            .unwrap()
            .len(),
        1
    );
    assert_eq!(
        bench
            .index
            .search(&alias, &query(EAST, "words"))
            .await
            .unwrap()
            .len(),
        1
    );
    assert_eq!(
        bench
            .index
            .collection(&alias)
            .await
            .unwrap()
            .unwrap()
            .points,
        1
    );
    bench
        .index
        .delete(&alias, &Filter::default())
        .await
        .unwrap();
    assert_eq!(bench.count(&Filter::default()).await, 0);

    bench.index.drop_collection(&bench.name).await.unwrap();
    assert_eq!(bench.index.resolve(&alias).await.unwrap(), None);
}

pub async fn an_alias_to_nowhere_leaves_the_old_one(bench: Bench) {
    bench.create().await;
    let alias = bench.other("alias");
    bench.index.point_alias(&alias, &bench.name).await.unwrap();
    let error = bench
        .index
        .point_alias(&alias, &bench.other("nowhere"))
        .await
        .unwrap_err();
    assert!(matches!(error, IndexError::NotFound { .. }), "{error}");
    assert_eq!(
        bench.index.resolve(&alias).await.unwrap(),
        Some(bench.name.clone())
    );
    // Names and aliases do not overlap.
    let error = bench
        .index
        .point_alias(&bench.name, &bench.name)
        .await
        .unwrap_err();
    assert!(matches!(error, IndexError::Denied { .. }), "{error}");
}

pub async fn no_search_fails_while_its_alias_is_swapped(bench: Bench) {
    let (a, b, alias) = (bench.other("a"), bench.other("b"), bench.other("alias"));
    for (n, name) in [(1, &a), (2, &b)] {
        bench.index.create_collection(name, &spec()).await.unwrap();
        bench
            .index
            .upsert(name, &[point(n, EAST, "word")], UpsertMode::NotNewer)
            .await
            .unwrap();
    }
    bench.index.point_alias(&alias, &a).await.unwrap();

    let (stop, searches) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicUsize::new(0)),
    );
    let searching = tokio::spawn({
        let (index, alias) = (bench.index.clone(), alias.clone());
        let (stop, searches) = (stop.clone(), searches.clone());
        async move {
            while !stop.load(Ordering::Relaxed) {
                let hits = index.search(&alias, &query(EAST, "word")).await.unwrap();
                assert!(ids(&hits) == [id(1)] || ids(&hits) == [id(2)], "{hits:?}");
                searches.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    for swap in 0.. {
        let target = if swap % 2 == 0 { &b } else { &a };
        bench.index.point_alias(&alias, target).await.unwrap();
        let enough = swap >= 20 && searches.load(Ordering::Relaxed) >= 20;
        if enough || searching.is_finished() {
            break;
        }
    }
    stop.store(true, Ordering::Relaxed);
    searching.await.unwrap();
}
