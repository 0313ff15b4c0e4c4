//! An engine stores points whole, and gives them back by id and in order.

use elf::index::{Filter, Query, Relabel, UpsertMode};

use super::{EAST, NORTH};
use crate::setup::{
    Bench, assert_same_direction, at_revision, by_keyword, by_meaning, direction, id, noon, point,
    query,
};

pub async fn points_come_back_as_they_were_written(bench: Bench) {
    bench.create().await;
    let mut full = point(1, [3.0, 4.0, 0.0, 12.0], "a text that is not stored");
    full.payload.note.labels.key = Some("a/key with spaces".into());
    full.payload.note.expires_at = Some(noon());
    let bare = point(2, NORTH, "another");
    let given = vec![full.clone(), bare.clone()];
    bench
        .index
        .upsert(&bench.name, &given, UpsertMode::NotNewer)
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
        assert_same_direction(
            found.vector.as_ref().unwrap(),
            given.vector.as_ref().unwrap(),
        );
    }
    let without = bench
        .index
        .scroll(&bench.name, None, 10, false)
        .await
        .unwrap();
    assert!(
        without
            .iter()
            .all(|point| point.vector.is_none() && point.has_vector == Some(true))
    );
}

pub async fn a_point_without_a_vector_is_found_by_keyword_alone(bench: Bench) {
    bench.create().await;
    let write = async |revision, vector: Option<[f32; 4]>| {
        let mut waiting = at_revision(revision, point(1, EAST, "the zebra"));
        waiting.vector = vector.map(|vector| vector.to_vec());
        let others = [point(2, NORTH, "a herd"), point(3, EAST, "a zebra too")];
        bench
            .index
            .upsert(
                &bench.name,
                &[waiting].into_iter().chain(others).collect::<Vec<_>>(),
                UpsertMode::NotNewer,
            )
            .await
            .unwrap();
    };
    let sorted = |mut ids: Vec<uuid::Uuid>| {
        ids.sort();
        ids
    };
    let zebras = sorted(vec![id(1), id(3)]);
    for (revision, vector) in [(1, None), (2, Some(EAST)), (3, None)] {
        write(revision, vector).await;
        let found = bench.search(&query(EAST, "zebra")).await;
        assert_eq!(sorted(by_keyword(&found)), zebras);
        assert_eq!(by_meaning(&found).contains(&id(1)), vector.is_some());
        let alone = Query {
            vector: None,
            ..query(EAST, "zebra")
        };
        assert_eq!(sorted(by_keyword(&bench.search(&alone).await)), zebras);
        let stored = bench.all().await;
        let stored = stored.iter().find(|point| point.chunk_id == id(1)).unwrap();
        assert_eq!(stored.vector.is_some(), vector.is_some());
    }
}

/// Not sent is gone: the vector, the fields of the payload, the words.
pub async fn what_a_new_point_lacks_is_gone(bench: Bench) {
    bench.create().await;
    what_is_not_sent_is_gone(&bench, async || {}).await;
}

/// `between` the two upserts.
pub async fn what_is_not_sent_is_gone(bench: &Bench, between: impl AsyncFnOnce()) {
    let mut old: Vec<_> = (0..300)
        .map(|n| point(n, direction(n), "the okapi"))
        .collect();
    for point in &mut old {
        point.payload.note.labels.key = Some("a key".into());
        point.payload.note.expires_at = Some(noon());
    }
    let upsert = async |points: &[_]| {
        let upsert = bench
            .index
            .upsert(&bench.name, points, UpsertMode::NotNewer);
        upsert.await.unwrap();
    };
    upsert(&old).await;
    between().await;

    let mut new = at_revision(2, point(1, EAST, "the zebra"));
    new.vector = None;
    let mut without_words = at_revision(2, point(2, NORTH, ""));
    without_words.vector = None;
    upsert(&[new.clone(), without_words]).await;
    // An older one that comes late changes nothing.
    upsert(&old[1..3]).await;
    let relabelled = Relabel {
        from: 1,
        to: at_revision(2, point(3, EAST, "")).payload.note,
    };
    bench
        .index
        .relabel(&bench.name, &[relabelled])
        .await
        .unwrap();

    let stored = bench
        .index
        .scroll(&bench.name, None, 1000, false)
        .await
        .unwrap();
    for point in &stored {
        let is_new = [id(1), id(2)].contains(&point.chunk_id);
        assert_eq!(point.has_vector, Some(!is_new), "{point:?}");
        let is_changed = is_new || point.chunk_id == id(3);
        for field in ["key", "expires_at"] {
            assert_eq!(point.payload.contains_key(field), !is_changed, "{point:?}");
        }
    }
    let points = bench.all().await;
    let read = |id| points.iter().find(|point| point.chunk_id == id).unwrap();
    assert_eq!(read(id(1)).payload, new.payload.to_json());
    assert_eq!((&read(id(1)).vector, &read(id(2)).vector), (&None, &None));
    assert!(read(id(3)).vector.is_some());
    let all = Query {
        candidates: 400,
        ..query(direction(1), "okapi")
    };
    let found = bench.search(&all).await;
    for gone in [id(1), id(2)] {
        assert!(
            !by_meaning(&found).contains(&gone),
            "found by the meaning of the old text"
        );
        assert!(
            !by_keyword(&found).contains(&gone),
            "found by a word of the old text"
        );
    }
    assert_eq!(
        by_keyword(&bench.search(&query(EAST, "zebra")).await),
        [id(1)]
    );
}

pub async fn the_same_upsert_twice_changes_nothing(bench: Bench) {
    bench.create().await;
    let points: Vec<_> = (0..20)
        .map(|n| point(n, direction(n), "the same words"))
        .collect();
    bench
        .index
        .upsert(&bench.name, &points, UpsertMode::NotNewer)
        .await
        .unwrap();
    let before = (bench.all().await, bench.search(&query(EAST, "words")).await);
    bench
        .index
        .upsert(&bench.name, &points, UpsertMode::NotNewer)
        .await
        .unwrap();
    let after = (bench.all().await, bench.search(&query(EAST, "words")).await);
    assert_eq!(before.0, after.0);
    assert_eq!(before.1.len(), after.1.len());
}

pub async fn points_are_read_by_their_ids(bench: Bench) {
    bench.create().await;
    let points: Vec<_> = (1..=5).map(|n| point(n, direction(n), "words")).collect();
    bench
        .index
        .upsert(&bench.name, &points, UpsertMode::NotNewer)
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
        (point.vector, point.has_vector) = (None, None);
    }
    assert_eq!(bare.unwrap(), wanted);
    let none = bench.index.points(&bench.name, &[], true).await.unwrap();
    assert_eq!(none, []);
}

pub async fn scroll_gives_every_point_once_in_order(bench: Bench) {
    bench.create().await;
    let points: Vec<_> = (0..333).map(|n| point(n, direction(n), "")).collect();
    let mut wanted: Vec<_> = points.iter().map(|point| point.payload.chunk_id).collect();
    wanted.sort();
    bench
        .index
        .upsert(&bench.name, &points, UpsertMode::NotNewer)
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
        .upsert(&bench.name, &points, UpsertMode::NotNewer)
        .await
        .unwrap();
    assert_eq!(bench.count(&Filter::default()).await, 1300);
    bench
        .index
        .upsert(&bench.name, &[], UpsertMode::NotNewer)
        .await
        .unwrap();
}
