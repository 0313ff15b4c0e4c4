//! An engine creates and drops collections, says what they were created with, and names the
//! one that is missing.

use elf::config::{Bm25Options, Tokenizer};
use elf::index::{CollectionSpec, CollectionStatus, Filter, IndexError, UpsertMode};

use super::EAST;
use crate::setup::{Bench, by_keyword, by_meaning, direction, id, point, query, spec, until_green};

pub async fn making_a_collection_twice_keeps_the_first(bench: Bench) {
    bench.create().await;
    bench
        .index
        .upsert(&bench.name, &[point(1, EAST, "one")], UpsertMode::NotNewer)
        .await
        .unwrap();
    let other = CollectionSpec {
        embedding_version: "another".into(),
        ..spec()
    };
    bench
        .index
        .create_collection(&bench.name, &other)
        .await
        .unwrap();
    let info = bench.index.collection(&bench.name).await.unwrap().unwrap();
    assert_eq!(info.spec, Some(spec()));
    assert_eq!(info.points, 1);
}

pub async fn a_spec_comes_back_as_it_was_given(bench: Bench) {
    let bm25 = Bm25Options {
        tokenizer: Tokenizer::Multilingual,
        language: "german".into(),
        stopwords: vec!["notiz".into()],
        lead: true,
        ascii_folding: true,
        k: 1.7,
        b: 0.25,
        avg_len: 100.5,
    };
    let given = CollectionSpec {
        dim: 7,
        bm25,
        embedding_version: "a/b:1 ü".into(),
    };
    bench
        .index
        .create_collection(&bench.name, &given)
        .await
        .unwrap();
    let info = bench.index.collection(&bench.name).await.unwrap().unwrap();
    assert_eq!(info.spec, Some(given));
    assert_eq!((info.points, info.status), (0, CollectionStatus::Green));
}

pub async fn an_unknown_collection_is_none_or_not_found(bench: Bench) {
    let (index, name) = (&bench.index, &bench.name);
    assert_eq!(index.collection(name).await.unwrap(), None);
    assert_eq!(index.resolve(name).await.unwrap(), None);
    let one = vec![point(1, EAST, "one")];
    let filter = Filter::default();
    let failures = [
        index
            .upsert(name, &one, UpsertMode::NotNewer)
            .await
            .unwrap_err(),
        index.delete(name, &filter).await.unwrap_err(),
        index.points(name, &[id(1)], false).await.unwrap_err(),
        index.begin_load(name).await.unwrap_err(),
        index.end_load(name).await.unwrap_err(),
        index.count(name, &filter).await.unwrap_err(),
        index.scroll(name, None, 10, false).await.unwrap_err(),
        index.search(name, &query(EAST, "one")).await.unwrap_err(),
        index
            .point_alias(&bench.other("alias"), name)
            .await
            .unwrap_err(),
    ];
    for failure in failures {
        let IndexError::NotFound { name: missing, .. } = &failure else {
            panic!("{failure}")
        };
        assert_eq!(missing, name);
    }
}

pub async fn an_unknown_language_is_refused(bench: Bench) {
    let bm25 = Bm25Options {
        language: "klingon".into(),
        ..Bm25Options::default()
    };
    let refused = bench
        .index
        .create_collection(&bench.name, &CollectionSpec { bm25, ..spec() })
        .await;
    let error = refused.unwrap_err();
    assert!(matches!(error, IndexError::Denied { .. }), "{error}");
    assert!(
        error.to_string().contains("german"),
        "{error} does not say what to use"
    );
    assert_eq!(bench.index.collection(&bench.name).await.unwrap(), None);
}

pub async fn bulk_loading_is_not_seen_from_outside(bench: Bench) {
    bench.create().await;
    let index = &bench.index;
    for (round, on) in [false, true, true, false, false].into_iter().enumerate() {
        match on {
            true => assert!(index.begin_load(&bench.name).await.unwrap() >= 100_000),
            false => index.end_load(&bench.name).await.unwrap(),
        }
        let n = round as u64;
        let one = vec![point(n, direction(n), &format!("word{n}"))];
        index
            .upsert(&bench.name, &one, UpsertMode::InsertOnly)
            .await
            .unwrap();
        let info = until_green(index.as_ref(), &bench.name).await;
        assert_eq!((info.spec, info.points), (Some(spec()), n + 1));
        let hits = bench
            .search(&query(direction(n), &format!("word{n}")))
            .await;
        assert_eq!(by_meaning(&hits)[0], id(n));
        assert_eq!(by_keyword(&hits), [id(n)]);
    }
}

pub async fn bulk_loading_is_asked_of_a_collection(bench: Bench) {
    bench.create().await;
    let alias = bench.other("alias");
    bench.index.point_alias(&alias, &bench.name).await.unwrap();
    let begun = bench.index.begin_load(&alias).await.map(|_| ());
    for answer in [begun, bench.index.end_load(&alias).await] {
        let refused = answer.unwrap_err();
        assert!(matches!(refused, IndexError::Denied { .. }), "{refused:?}");
        assert!(refused.to_string().contains(&alias), "{refused}");
    }
}

pub async fn dropping_a_collection_twice_is_no_error(bench: Bench) {
    bench.create().await;
    bench.index.drop_collection(&bench.name).await.unwrap();
    assert_eq!(bench.index.collection(&bench.name).await.unwrap(), None);
    bench.index.drop_collection(&bench.name).await.unwrap();
    // The name is free again, and none of its points remain.
    bench.create().await;
    assert_eq!(bench.count(&Filter::default()).await, 0);
}

pub async fn a_wrong_dimension_is_refused(bench: Bench) {
    bench.create().await;
    let mut wrong = point(1, EAST, "");
    wrong.vector.as_mut().unwrap().push(1.0);
    let mixed = vec![point(2, EAST, ""), wrong];
    let mut query = query(EAST, "");
    query.vector.as_mut().unwrap().pop();
    let failures = [
        bench
            .index
            .upsert(&bench.name, &mixed, UpsertMode::NotNewer)
            .await
            .unwrap_err(),
        bench.index.search(&bench.name, &query).await.unwrap_err(),
    ];
    for failure in failures {
        assert!(matches!(failure, IndexError::Denied { .. }), "{failure:?}");
        assert!(failure.to_string().contains("elf reindex"), "{failure}");
    }
    // The collection still works.
    bench
        .index
        .upsert(&bench.name, &[point(3, EAST, "")], UpsertMode::NotNewer)
        .await
        .unwrap();
    assert!(
        bench
            .all()
            .await
            .iter()
            .any(|point| point.chunk_id == id(3))
    );
}
