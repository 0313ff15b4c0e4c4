//! What both engines promise.

use elf::config::Bm25Options;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use elf::index::{CollectionSpec, CollectionStatus, Filter, IndexError, UpsertMode};

use crate::setup::{
    Bench, DIM, assert_same_direction, at_revision, direction, id, ids, noon, note, point, query,
    spec, until_green,
};

const EAST: [f32; DIM] = [1.0, 0.0, 0.0, 0.0];
const NORTH: [f32; DIM] = [0.0, 1.0, 0.0, 0.0];
const UP: [f32; DIM] = [0.0, 0.0, 1.0, 0.0];

pub async fn making_a_collection_twice_keeps_the_first(bench: Bench) {
    bench.create().await;
    bench
        .index
        .upsert(
            &bench.name,
            vec![point(1, EAST, "one")],
            UpsertMode::NotNewer,
        )
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
        language: "german".into(),
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
            .upsert(name, one, UpsertMode::NotNewer)
            .await
            .unwrap_err(),
        index.delete(name, &filter).await.unwrap_err(),
        index.points(name, &[id(1)], false).await.unwrap_err(),
        index.bulk_load(name, true).await.unwrap_err(),
        index.bulk_load(name, false).await.unwrap_err(),
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

pub async fn points_come_back_as_they_were_written(bench: Bench) {
    bench.create().await;
    let mut full = point(1, [3.0, 4.0, 0.0, 12.0], "a text that is not stored");
    full.payload.labels.key = Some("a/key with spaces".into());
    full.payload.expires_at = Some(noon());
    let bare = point(2, NORTH, "another");
    let given = vec![full.clone(), bare.clone()];
    bench
        .index
        .upsert(&bench.name, given, UpsertMode::NotNewer)
        .await
        .unwrap();

    let stored = bench.all().await;
    assert_eq!(stored.len(), 2);
    for given in [full, bare] {
        let found = stored
            .iter()
            .find(|point| point.chunk_id == given.payload.chunk_id)
            .unwrap();
        assert_eq!(found.payload, given.payload.to_json());
        assert_same_direction(found.vector.as_ref().unwrap(), &given.vector);
    }
    let without = bench
        .index
        .scroll(&bench.name, None, 10, false)
        .await
        .unwrap();
    assert!(without.iter().all(|point| point.vector.is_none()));
}

pub async fn an_older_revision_never_replaces_a_newer_one(bench: Bench) {
    bench.create().await;
    let upsert = async |revision, text: &str| {
        let mut point = at_revision(revision, point(1, EAST, text));
        point.payload.labels.scope = text.into();
        bench
            .index
            .upsert(&bench.name, vec![point], UpsertMode::NotNewer)
            .await
            .unwrap();
        bench.all().await[0].payload["scope"].clone()
    };
    assert_eq!(upsert(5, "five").await, "five");
    assert_eq!(upsert(4, "four").await, "five");
    assert_eq!(upsert(5, "five again").await, "five again");
    assert_eq!(upsert(6, "six").await, "six");
    assert_eq!(bench.count(&Filter::default()).await, 1);
}

pub async fn points_of_one_upsert_are_judged_each_by_its_revision(bench: Bench) {
    bench.create().await;
    let stored = vec![
        at_revision(5, point(1, EAST, "")),
        at_revision(5, point(2, EAST, "")),
    ];
    bench
        .index
        .upsert(&bench.name, stored, UpsertMode::NotNewer)
        .await
        .unwrap();
    let mixed = vec![
        at_revision(9, point(1, NORTH, "")),
        at_revision(4, point(2, NORTH, "")),
        at_revision(1, point(3, NORTH, "")),
    ];
    bench
        .index
        .upsert(&bench.name, mixed, UpsertMode::NotNewer)
        .await
        .unwrap();
    let revisions: BTreeMap<_, _> = bench
        .all()
        .await
        .into_iter()
        .map(|point| (point.chunk_id, point.payload["revision"].as_i64().unwrap()))
        .collect();
    assert_eq!(
        revisions,
        BTreeMap::from([(id(1), 9), (id(2), 5), (id(3), 1)])
    );
}

pub async fn the_same_upsert_twice_changes_nothing(bench: Bench) {
    bench.create().await;
    let points: Vec<_> = (0..20)
        .map(|n| point(n, direction(n), "the same words"))
        .collect();
    bench
        .index
        .upsert(&bench.name, points.clone(), UpsertMode::NotNewer)
        .await
        .unwrap();
    let before = (bench.all().await, bench.search(&query(EAST, "words")).await);
    bench
        .index
        .upsert(&bench.name, points, UpsertMode::NotNewer)
        .await
        .unwrap();
    let after = (bench.all().await, bench.search(&query(EAST, "words")).await);
    assert_eq!(before.0, after.0);
    assert_eq!(before.1.len(), after.1.len());
}

pub async fn insert_only_never_replaces(bench: Bench) {
    bench.create().await;
    let upsert = async |points| {
        bench
            .index
            .upsert(&bench.name, points, UpsertMode::InsertOnly)
            .await
            .unwrap();
    };
    upsert(vec![at_revision(3, point(1, EAST, ""))]).await;
    upsert(vec![
        at_revision(9, point(1, NORTH, "")),
        at_revision(9, point(2, NORTH, "")),
    ])
    .await;
    let stored = bench.all().await;
    let first = stored.iter().find(|point| point.chunk_id == id(1)).unwrap();
    assert_eq!(first.payload["revision"], 3);
    assert_same_direction(first.vector.as_ref().unwrap(), &EAST);
    assert_eq!(stored.len(), 2);
}

pub async fn delete_takes_only_what_is_older(bench: Bench) {
    bench.create().await;
    let mut points: Vec<_> = (0..4)
        .map(|index| {
            let mut chunk =
                at_revision(if index < 2 { 8 } else { 7 }, point(1, EAST, "old and new"));
            chunk.payload.chunk_index = index;
            chunk.payload.chunk_id = elf::note::chunk_id(note(1), index);
            chunk
        })
        .collect();
    points.push(at_revision(1, point(2, EAST, "another note")));
    bench
        .index
        .upsert(&bench.name, points, UpsertMode::NotNewer)
        .await
        .unwrap();

    let older = Filter {
        note_ids: Some(vec![note(1)]),
        revision_below: Some(8),
        ..Filter::default()
    };
    assert_eq!(bench.count(&older).await, 2);
    bench.index.delete(&bench.name, &older).await.unwrap();
    let left: BTreeSet<_> = bench
        .all()
        .await
        .iter()
        .map(|point| point.chunk_id)
        .collect();
    let wanted = [
        elf::note::chunk_id(note(1), 0),
        elf::note::chunk_id(note(1), 1),
        id(2),
    ];
    assert_eq!(left, BTreeSet::from(wanted));
    // Again: there is nothing left to take.
    bench.index.delete(&bench.name, &older).await.unwrap();
    assert_eq!(bench.count(&Filter::default()).await, 3);
}

pub async fn a_filter_takes_what_is_newer_and_leaves_what_is_excepted(bench: Bench) {
    bench.create().await;
    let points = (1..=5)
        .map(|n| at_revision(n as i64, point(n, EAST, "")))
        .collect();
    bench
        .index
        .upsert(&bench.name, points, UpsertMode::NotNewer)
        .await
        .unwrap();
    let notes = Some((1..=5).map(note).collect::<Vec<_>>());
    let newer = Filter {
        note_ids: notes.clone(),
        revision_above: Some(3),
        ..Filter::default()
    };
    assert_eq!(bench.count(&newer).await, 2);
    let between = Filter {
        revision_below: Some(5),
        ..newer
    };
    assert_eq!(bench.count(&between).await, 1);
    let not_written = Filter {
        note_ids: notes,
        except_chunk_ids: Some(vec![id(2), id(9)]),
        revision_below: Some(4),
        ..Filter::default()
    };
    assert_eq!(bench.count(&not_written).await, 2);
    bench.index.delete(&bench.name, &not_written).await.unwrap();
    let left: BTreeSet<_> = bench.all().await.iter().map(|p| p.chunk_id).collect();
    assert_eq!(left, BTreeSet::from([id(2), id(4), id(5)]));
    let none_excepted = Filter {
        except_chunk_ids: Some(Vec::new()),
        ..Filter::default()
    };
    assert_eq!(bench.count(&none_excepted).await, 3);
}

pub async fn an_upsert_over_a_forgotten_revision_replaces_it_and_nothing_newer(bench: Bench) {
    bench.create().await;
    let upsert = async |points, mode| {
        bench.index.upsert(&bench.name, points, mode).await.unwrap();
    };
    let stored = vec![
        at_revision(80, point(1, EAST, "")),
        at_revision(81, point(2, EAST, "")),
    ];
    upsert(stored, UpsertMode::NotNewer).await;
    let repaired = (1..=3)
        .map(|n| at_revision(7, point(n, NORTH, "")))
        .collect();
    upsert(repaired, UpsertMode::UpTo(80)).await;
    let stored = bench.all().await;
    let revisions: Vec<_> = (1..=3)
        .map(|n| stored.iter().find(|p| p.chunk_id == id(n)).unwrap())
        .map(|p| p.payload["revision"].as_i64().unwrap())
        .collect();
    assert_eq!(revisions, [7, 81, 7]);
}

pub async fn an_empty_list_matches_nothing(bench: Bench) {
    bench.create().await;
    bench
        .index
        .upsert(&bench.name, vec![point(1, EAST, "")], UpsertMode::NotNewer)
        .await
        .unwrap();
    let no_notes = Filter {
        note_ids: Some(Vec::new()),
        ..Filter::default()
    };
    let no_chunks = Filter {
        chunk_ids: Some(Vec::new()),
        ..Filter::default()
    };
    for none in [no_notes, no_chunks] {
        assert_eq!(bench.count(&none).await, 0);
        bench.index.delete(&bench.name, &none).await.unwrap();
        assert_eq!(bench.count(&Filter::default()).await, 1);
    }
}

pub async fn a_delete_by_chunk_leaves_a_newer_point_alone(bench: Bench) {
    bench.create().await;
    let backfill = (1..=4)
        .map(|n| at_revision(5, point(n, direction(n), "backfilled")))
        .collect();
    bench
        .index
        .upsert(&bench.name, backfill, UpsertMode::InsertOnly)
        .await
        .unwrap();
    let written = vec![at_revision(6, point(2, EAST, "written by a worker"))];
    bench
        .index
        .upsert(&bench.name, written, UpsertMode::NotNewer)
        .await
        .unwrap();

    // Postgres has lost the revisions of notes 1, 2 and 9.
    let seen = Filter {
        chunk_ids: Some(vec![id(1), id(2), id(9)]),
        revision_below: Some(6),
        ..Filter::default()
    };
    assert_eq!(bench.count(&seen).await, 1);
    let of_another_note = Filter {
        note_ids: Some(vec![note(3)]),
        ..seen.clone()
    };
    for filter in [of_another_note, seen] {
        bench.index.delete(&bench.name, &filter).await.unwrap();
    }
    let left: BTreeSet<_> = bench.all().await.iter().map(|p| p.chunk_id).collect();
    assert_eq!(left, BTreeSet::from([id(2), id(3), id(4)]));

    let mut one = query(EAST, "backfilled");
    one.filter.chunk_ids = Some(vec![id(1), id(4)]);
    assert_eq!(ids(&bench.search(&one).await), [id(4)]);
}

pub async fn a_thousand_chunks_fit_in_a_filter(bench: Bench) {
    bench.create().await;
    let points = (0..1300).map(|n| point(n, direction(n), "")).collect();
    bench
        .index
        .upsert(&bench.name, points, UpsertMode::InsertOnly)
        .await
        .unwrap();
    let chunks: Vec<_> = (100..1300).map(id).collect();
    let read = bench.index.points(&bench.name, &chunks, false).await;
    assert_eq!(read.unwrap().len(), 1200);
    let many = Filter {
        chunk_ids: Some(chunks),
        ..Filter::default()
    };
    bench.index.delete(&bench.name, &many).await.unwrap();
    assert_eq!(bench.count(&Filter::default()).await, 100);
}

pub async fn points_are_read_by_their_ids(bench: Bench) {
    bench.create().await;
    let points = (1..=5).map(|n| point(n, direction(n), "words")).collect();
    bench
        .index
        .upsert(&bench.name, points, UpsertMode::NotNewer)
        .await
        .unwrap();
    let alias = bench.other("alias");
    bench.index.point_alias(&alias, &bench.name).await.unwrap();

    let mut wanted = bench.all().await;
    wanted.retain(|point| [id(2), id(5), id(3)].contains(&point.chunk_id));
    assert_eq!(wanted.len(), 3);
    let asked = [id(5), id(77), id(2), id(3), id(5)];
    for name in [&bench.name, &alias] {
        let read = bench.index.points(name, &asked, true).await.unwrap();
        assert_eq!(read, wanted);
    }
    let bare = bench.index.points(&bench.name, &asked, false).await;
    for point in &mut wanted {
        point.vector = None;
    }
    assert_eq!(bare.unwrap(), wanted);
    let none = bench.index.points(&bench.name, &[], true).await.unwrap();
    assert_eq!(none, []);
}

pub async fn bulk_loading_is_not_seen_from_outside(bench: Bench) {
    bench.create().await;
    let index = &bench.index;
    for (round, on) in [false, true, true, false, false].into_iter().enumerate() {
        index.bulk_load(&bench.name, on).await.unwrap();
        let n = round as u64;
        let one = vec![point(n, direction(n), &format!("word{n}"))];
        index
            .upsert(&bench.name, one, UpsertMode::InsertOnly)
            .await
            .unwrap();
        let info = until_green(index.as_ref(), &bench.name).await;
        assert_eq!((info.spec, info.points), (Some(spec()), n + 1));
        let hits = bench
            .search(&query(direction(n), &format!("word{n}")))
            .await;
        assert_eq!(hits[0].chunk_id, id(n));
    }
}

pub async fn bulk_loading_is_asked_of_a_collection(bench: Bench) {
    bench.create().await;
    let alias = bench.other("alias");
    bench.index.point_alias(&alias, &bench.name).await.unwrap();
    for on in [true, false] {
        let refused = bench.index.bulk_load(&alias, on).await.unwrap_err();
        assert!(matches!(refused, IndexError::Denied { .. }), "{refused:?}");
        assert!(refused.to_string().contains(&alias), "{refused}");
    }
}

pub async fn filters_match_keywords_and_expiry(bench: Bench) {
    bench.create().await;
    let mut points: Vec<_> = (1..=4).map(|n| point(n, EAST, "")).collect();
    points[0].payload.labels.tenant_id = "somebody else".into();
    points[1].payload.labels.key = Some("k".into());
    points[2].payload.expires_at = Some(noon());
    points[3].payload.labels.kind = "a fact".into();
    points[3].payload.status = "deleted".into();
    bench
        .index
        .upsert(&bench.name, points, UpsertMode::NotNewer)
        .await
        .unwrap();

    let keyword = async |field: &str, value: &str| {
        let keywords = BTreeMap::from([(field.to_owned(), value.to_owned())]);
        bench
            .count(&Filter {
                keywords,
                ..Filter::default()
            })
            .await
    };
    assert_eq!(keyword("tenant_id", "tenant").await, 3);
    assert_eq!(keyword("tenant_id", "somebody else").await, 1);
    // A keyword is the whole value, never a word of it.
    assert_eq!(keyword("tenant_id", "somebody").await, 0);
    assert_eq!(keyword("scope", "my team").await, 4);
    assert_eq!(keyword("scope", "team my").await, 0);
    assert_eq!(keyword("key", "k").await, 1);
    assert_eq!(keyword("type", "fact").await, 3);
    assert_eq!(keyword("status", "deleted").await, 1);

    let live = async |at| {
        bench
            .count(&Filter {
                live_at: Some(at),
                ..Filter::default()
            })
            .await
    };
    let tick = chrono::Duration::microseconds(1);
    assert_eq!(live(noon() - tick).await, 4);
    // Expired at the very instant, like `Note::is_live`.
    assert_eq!(live(noon()).await, 3);
    assert_eq!(live(noon() + tick).await, 3);

    let both = Filter {
        keywords: BTreeMap::from([("tenant_id".into(), "tenant".into())]),
        live_at: Some(noon()),
        note_ids: Some(vec![note(1), note(2), note(3)]),
        ..Filter::default()
    };
    assert_eq!(bench.count(&both).await, 1);
}

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
        .upsert(&alias, words, UpsertMode::NotNewer)
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

pub async fn dropping_a_collection_twice_is_no_error(bench: Bench) {
    bench.create().await;
    bench.index.drop_collection(&bench.name).await.unwrap();
    assert_eq!(bench.index.collection(&bench.name).await.unwrap(), None);
    bench.index.drop_collection(&bench.name).await.unwrap();
    // The name is free again, and none of its points remain.
    bench.create().await;
    assert_eq!(bench.count(&Filter::default()).await, 0);
}

pub async fn no_search_fails_while_its_alias_is_swapped(bench: Bench) {
    let (a, b, alias) = (bench.other("a"), bench.other("b"), bench.other("alias"));
    for (n, name) in [(1, &a), (2, &b)] {
        bench.index.create_collection(name, &spec()).await.unwrap();
        bench
            .index
            .upsert(name, vec![point(n, EAST, "word")], UpsertMode::NotNewer)
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

pub async fn scroll_gives_every_point_once_in_order(bench: Bench) {
    bench.create().await;
    let points: Vec<_> = (0..333).map(|n| point(n, direction(n), "")).collect();
    let mut wanted: Vec<_> = points.iter().map(|point| point.payload.chunk_id).collect();
    wanted.sort();
    bench
        .index
        .upsert(&bench.name, points, UpsertMode::NotNewer)
        .await
        .unwrap();

    for limit in [1, 50, 111, 333, 1000] {
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let page = bench
                .index
                .scroll(&bench.name, after, limit, false)
                .await
                .unwrap();
            assert!(page.len() <= limit);
            found.extend(page.iter().map(|point| point.chunk_id));
            after = found.last().copied();
            if page.len() < limit {
                break;
            }
        }
        assert_eq!(found, wanted, "in pages of {limit}");
    }
    // Behind an id that is not there, the next one begins.
    let between = uuid::Uuid::from_u128(wanted[9].as_u128() + 1);
    let page = bench
        .index
        .scroll(&bench.name, Some(between), 1, false)
        .await
        .unwrap();
    assert_eq!(page[0].chunk_id, wanted[10]);
    // Behind the last id there is nothing.
    for last in [wanted[332], uuid::Uuid::max()] {
        let page = bench.index.scroll(&bench.name, Some(last), 9, false).await;
        assert_eq!(page.unwrap(), []);
    }
}

pub async fn a_large_upsert_is_written_whole(bench: Bench) {
    bench.create().await;
    let points: Vec<_> = (0..1300)
        .map(|n| point(n, direction(n), "many points"))
        .collect();
    bench
        .index
        .upsert(&bench.name, points, UpsertMode::NotNewer)
        .await
        .unwrap();
    assert_eq!(bench.count(&Filter::default()).await, 1300);
    bench
        .index
        .upsert(&bench.name, Vec::new(), UpsertMode::NotNewer)
        .await
        .unwrap();
}

/// Notes on unrelated topics, with unrelated vectors.
async fn fill_with_notes(bench: &Bench) {
    bench.create().await;
    let notes = [
        point(1, EAST, "Bread needs flour, water, salt and patience."),
        point(2, NORTH, "The database restarts when the disk is full."),
        point(
            3,
            UP,
            "Error XK-4711 means that the pump has lost its prime.",
        ),
        point(4, [0.9, 0.1, 0.0, 0.0], "Rye flour makes a sour dough."),
        point(
            5,
            [0.5, 0.5, 0.5, 0.5],
            "Nothing in particular is said here about anything.",
        ),
    ];
    bench
        .index
        .upsert(&bench.name, notes.to_vec(), UpsertMode::NotNewer)
        .await
        .unwrap();
}

pub async fn search_finds_by_meaning_and_by_exact_word(bench: Bench) {
    fill_with_notes(&bench).await;
    // By meaning: the words are in no note.
    let hits = bench.search(&query([0.0, 1.0, 0.1, 0.0], "zzz")).await;
    assert_eq!(hits[0].chunk_id, id(2));
    // By the exact word, against what the vector says. Both rankings have a
    // first; that of the words wins the tie.
    let hits = bench.search(&query(NORTH, "xk-4711")).await;
    assert_eq!(ids(&hits)[..2], [id(3), id(2)]);
    // Stemmed: "pumps" is "pump".
    let hits = bench.search(&query(NORTH, "pumps")).await;
    assert!(ids(&hits)[..2].contains(&id(3)));
    assert!(hits.windows(2).all(|pair| pair[0].score >= pair[1].score));
}

pub async fn what_both_rankings_find_comes_first(bench: Bench) {
    fill_with_notes(&bench).await;
    // Second by meaning, first by word: together ahead of note 1, first by
    // meaning and second by word, only if ranks are summed; note 4 has "rye".
    let hits = bench
        .search(&query([1.0, 0.0, 0.0, 0.0], "rye flour"))
        .await;
    assert_eq!(
        BTreeSet::from_iter(ids(&hits)[..2].iter().copied()),
        BTreeSet::from([id(1), id(4)])
    );
    // First by meaning and second by word, or the other way round, with the words
    // weighing 1.1: 1 / (rank / weight + 59) each, ranks counted from 1.
    let meaning = |rank: f32| 1.0 / (rank + 59.0);
    let word = |rank: f32| 1.0 / (rank / 1.1 + 59.0);
    let wanted = [meaning(1.0) + word(2.0), meaning(2.0) + word(1.0)];
    for (hit, wanted) in hits.iter().zip(wanted) {
        let score = hit.score;
        assert!((score - wanted).abs() < 1e-6, "{score} is not {wanted}");
    }
    // What only one ranking finds comes behind.
    assert!(hits[2].score < 1.0 / 60.0);
    let limited = bench
        .search(&elf::index::Query {
            limit: 1,
            ..query(NORTH, "disk")
        })
        .await;
    assert_eq!(ids(&limited), [id(2)]);
}

pub async fn a_text_without_words_is_still_found_by_meaning(bench: Bench) {
    bench.create().await;
    let points = vec![point(1, EAST, "!!! the and of ???"), point(2, NORTH, "")];
    bench
        .index
        .upsert(&bench.name, points, UpsertMode::NotNewer)
        .await
        .unwrap();
    for text in ["", "the of and", "…", "words that nobody wrote"] {
        let hits = bench.search(&query(EAST, text)).await;
        assert_eq!(ids(&hits)[0], id(1), "searching {text:?}");
        assert_eq!(hits.len(), 2);
    }
}

pub async fn search_never_leaves_its_filter(bench: Bench) {
    bench.create().await;
    let mut theirs = point(1, EAST, "a secret word");
    theirs.payload.labels.tenant_id = "them".into();
    let mut expired = point(2, EAST, "a secret word");
    expired.payload.expires_at = Some(noon());
    let ours = point(3, NORTH, "nothing");
    let points = vec![theirs, expired, ours];
    bench
        .index
        .upsert(&bench.name, points, UpsertMode::NotNewer)
        .await
        .unwrap();
    let mut query = query(EAST, "secret word");
    query
        .filter
        .keywords
        .insert("tenant_id".into(), "tenant".into());
    query.filter.live_at = Some(noon());
    assert_eq!(ids(&bench.search(&query).await), [id(3)]);
}

pub async fn language_none_stems_nothing(bench: Bench) {
    let bm25 = Bm25Options {
        language: "none".into(),
        ..Bm25Options::default()
    };
    bench
        .index
        .create_collection(&bench.name, &CollectionSpec { bm25, ..spec() })
        .await
        .unwrap();
    let points = vec![
        point(1, EAST, "pumps"),
        point(2, NORTH, "eta"),
        point(3, UP, "the"),
    ];
    bench
        .index
        .upsert(&bench.name, points, UpsertMode::NotNewer)
        .await
        .unwrap();
    let by_word = async |word: &str| {
        let hits = bench.search(&query([0.5, 0.5, 0.5, 0.0], word)).await;
        // Only what both rankings find scores more than one first place.
        ids(&hits
            .into_iter()
            .filter(|hit| hit.score > 1.0 / 60.0 + 0.001)
            .collect::<Vec<_>>())
    };
    assert!(by_word("pump").await.is_empty());
    assert_eq!(by_word("PUMPS").await, [id(1)]);
    // Neither English nor Basque stopwords are taken out.
    assert_eq!(by_word("the").await, [id(3)]);
    assert_eq!(by_word("eta").await, [id(2)]);
}

pub async fn a_wrong_dimension_is_refused(bench: Bench) {
    bench.create().await;
    let mut wrong = point(1, EAST, "");
    wrong.vector.push(1.0);
    let mixed = vec![point(2, EAST, ""), wrong];
    let mut query = query(EAST, "");
    query.vector.pop();
    let failures = [
        bench
            .index
            .upsert(&bench.name, mixed, UpsertMode::NotNewer)
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
        .upsert(&bench.name, vec![point(3, EAST, "")], UpsertMode::NotNewer)
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

pub async fn concurrent_writers_lose_nothing(bench: Bench) {
    bench.create().await;
    let writers: Vec<_> = (0..8)
        .map(|writer| {
            let (index, name) = (bench.index.clone(), bench.name.clone());
            tokio::spawn(async move {
                for n in 0..10 {
                    let mine = point(writer * 100 + n, direction(n), "mine");
                    // All writers write note 5000: the highest revision must stay.
                    let everybodys =
                        at_revision((n * 8 + writer) as i64, point(5000, EAST, "ours"));
                    index
                        .upsert(&name, vec![mine, everybodys], UpsertMode::NotNewer)
                        .await
                        .unwrap();
                    index.search(&name, &query(EAST, "mine")).await.unwrap();
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    let stored = bench.all().await;
    assert_eq!(stored.len(), 81);
    let everybodys = stored
        .iter()
        .find(|point| point.chunk_id == id(5000))
        .unwrap();
    assert_eq!(everybodys.payload["revision"], 79);
}
