//! A filter matches exactly the points that it describes, in counts and in deletes.

use std::collections::{BTreeMap, BTreeSet};

use elf::index::{Filter, UpsertMode};

use super::EAST;
use crate::setup::{Bench, at_revision, direction, id, noon, note, point};

pub async fn a_filter_takes_what_is_newer_and_leaves_what_is_excepted(bench: Bench) {
    bench.create().await;
    let points: Vec<_> = (1..=5)
        .map(|n| at_revision(n as i64, point(n, EAST, "")))
        .collect();
    bench
        .index
        .upsert(&bench.name, &points, UpsertMode::NotNewer)
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

pub async fn an_empty_list_matches_nothing(bench: Bench) {
    bench.create().await;
    bench
        .index
        .upsert(&bench.name, &[point(1, EAST, "")], UpsertMode::NotNewer)
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

pub async fn a_thousand_chunks_fit_in_a_filter(bench: Bench) {
    bench.create().await;
    let points: Vec<_> = (0..1300).map(|n| point(n, direction(n), "")).collect();
    bench
        .index
        .upsert(&bench.name, &points, UpsertMode::InsertOnly)
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

pub async fn filters_match_keywords_and_expiry(bench: Bench) {
    bench.create().await;
    let mut points: Vec<_> = (1..=4).map(|n| point(n, EAST, "")).collect();
    points[0].payload.note.labels.tenant_id = "somebody else".into();
    points[1].payload.note.labels.key = Some("k".into());
    points[2].payload.note.expires_at = Some(noon());
    points[3].payload.note.labels.kind = "a fact".into();
    points[3].payload.note.status = "deleted".into();
    bench
        .index
        .upsert(&bench.name, &points, UpsertMode::NotNewer)
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

pub async fn filters_match_times_and_importance(bench: Bench) {
    bench.create().await;
    let hour = chrono::Duration::hours(1);
    let mut points: Vec<_> = (1..=3).map(|n| point(n, EAST, "")).collect();
    for (n, (point, importance)) in points.iter_mut().zip([0.3, 0.7, 1.0]).enumerate() {
        point.payload.note.labels.updated_at = noon() + hour * i32::try_from(n).unwrap();
        point.payload.note.labels.importance = importance;
    }
    bench
        .index
        .upsert(&bench.name, &points, UpsertMode::NotNewer)
        .await
        .unwrap();
    let updated = async |after, before| {
        bench
            .count(&Filter {
                updated_after: after,
                updated_before: before,
                ..Filter::default()
            })
            .await
    };
    assert_eq!(updated(Some(noon()), None).await, 3);
    assert_eq!(updated(Some(noon() + hour), None).await, 2);
    assert_eq!(updated(None, Some(noon() + hour)).await, 1);
    assert_eq!(
        updated(Some(noon() + hour), Some(noon() + hour * 2)).await,
        1
    );
    let important = async |least| {
        bench
            .count(&Filter {
                min_importance: Some(least),
                ..Filter::default()
            })
            .await
    };
    assert_eq!(important(0.0).await, 3);
    // No float equals 0.7 exactly; the filter must match it nevertheless.
    assert_eq!(important(0.7).await, 2);
    assert_eq!(important(1.0).await, 1);
}
