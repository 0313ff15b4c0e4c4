//! A point of a newer revision survives every upsert and delete of an older one.

use std::collections::{BTreeMap, BTreeSet};

use elf::index::{Filter, NotePayload, Point, Relabel, UpsertMode};

use super::{EAST, NORTH};
use crate::setup::{
    Bench, assert_same_direction, at_revision, direction, id, ids, noon, note, point, query,
};

pub async fn an_older_revision_never_replaces_a_newer_one(bench: Bench) {
    bench.create().await;
    let upsert = async |revision, text: &str| {
        let mut point = at_revision(revision, point(1, EAST, text));
        point.payload.note.labels.scope = text.into();
        bench
            .index
            .upsert(&bench.name, &[point], UpsertMode::NotNewer)
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
        .upsert(&bench.name, &stored, UpsertMode::NotNewer)
        .await
        .unwrap();
    let mixed = vec![
        at_revision(9, point(1, NORTH, "")),
        at_revision(4, point(2, NORTH, "")),
        at_revision(1, point(3, NORTH, "")),
    ];
    bench
        .index
        .upsert(&bench.name, &mixed, UpsertMode::NotNewer)
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

pub async fn insert_only_never_replaces(bench: Bench) {
    bench.create().await;
    let upsert = async |points: Vec<_>| {
        bench
            .index
            .upsert(&bench.name, &points, UpsertMode::InsertOnly)
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

pub async fn a_relabel_changes_what_points_of_one_revision_say_of_their_note(bench: Bench) {
    bench.create().await;
    let chunk = |index: u32, revision| {
        let mut chunk = at_revision(revision, point(1, direction(index.into()), "words"));
        chunk.payload.chunk_index = index;
        chunk.payload.chunk_id = elf::note::chunk_id(note(1), index);
        chunk.payload.note.labels.key = Some("k".into());
        chunk
    };
    // One point is older than the relabel expects, and one is newer.
    let mut stored = vec![chunk(0, 5), chunk(1, 5), chunk(2, 4), chunk(3, 7)];
    stored.push(at_revision(5, point(2, NORTH, "another note")));
    let upserted = stored.clone();
    bench
        .index
        .upsert(&bench.name, &upserted, UpsertMode::NotNewer)
        .await
        .unwrap();

    let mut to = stored[0].payload.note.clone();
    to.revision = 6;
    to.expires_at = Some(noon());
    to.labels.key = None;
    to.labels.scope = "another scope".into();
    to.labels.importance = 0.3;
    let relabels = [
        Relabel {
            from: 5,
            to: to.clone(),
        },
        Relabel {
            from: 5,
            to: NotePayload {
                note_id: note(9),
                ..to.clone()
            },
        },
    ];
    let relabel = async || bench.index.relabel(&bench.name, &relabels).await.unwrap();
    relabel().await;
    let expected = |point: &Point| {
        let mut payload = point.payload.clone();
        if payload.note.note_id == note(1) && payload.note.revision == 5 {
            payload.note = to.clone();
        }
        (payload.chunk_id, payload.to_json(), point.vector.clone())
    };
    let mut wanted: Vec<_> = stored.iter().map(expected).collect();
    wanted.sort_by_key(|(id, ..)| *id);
    // Twice, because a client may resend it.
    for _ in 0..2 {
        let all = bench.all().await;
        assert_eq!(all.len(), wanted.len());
        for (point, (id, payload, vector)) in all.iter().zip(&wanted) {
            assert_eq!((point.chunk_id, &point.payload), (*id, payload));
            assert_same_direction(point.vector.as_ref().unwrap(), vector.as_ref().unwrap());
        }
        relabel().await;
    }
    // The indexes of the fields too.
    let having = async |filter: Filter| bench.count(&filter).await;
    let keyword = |field: &str, value: &str| Filter {
        keywords: BTreeMap::from([(field.into(), value.into())]),
        ..Filter::default()
    };
    assert_eq!(having(keyword("key", "k")).await, 2);
    assert_eq!(having(keyword("scope", "another scope")).await, 2);
    assert_eq!(having(keyword("scope", "my team")).await, 3);
    assert_eq!(having(Filter::of_revision(6)).await, 2);
    assert_eq!(having(Filter::of_revision(5)).await, 1);
    let live = Filter {
        live_at: Some(noon()),
        ..Filter::default()
    };
    assert_eq!(having(live).await, 3);
    let mut words = query(NORTH, "words");
    words.filter = keyword("scope", "another scope");
    assert_eq!(
        bench.search(&words).await.len(),
        2,
        "found by their vectors"
    );
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
        .upsert(&bench.name, &points, UpsertMode::NotNewer)
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

pub async fn an_upsert_over_a_forgotten_revision_replaces_it_and_nothing_newer(bench: Bench) {
    bench.create().await;
    let upsert = async |points: Vec<_>, mode| {
        bench
            .index
            .upsert(&bench.name, &points, mode)
            .await
            .unwrap();
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

pub async fn a_delete_by_chunk_leaves_a_newer_point_alone(bench: Bench) {
    bench.create().await;
    let backfill: Vec<_> = (1..=4)
        .map(|n| at_revision(5, point(n, direction(n), "backfilled")))
        .collect();
    bench
        .index
        .upsert(&bench.name, &backfill, UpsertMode::InsertOnly)
        .await
        .unwrap();
    let written = vec![at_revision(6, point(2, EAST, "written by a worker"))];
    bench
        .index
        .upsert(&bench.name, &written, UpsertMode::NotNewer)
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
                        .upsert(&name, &[mine, everybodys], UpsertMode::NotNewer)
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
