//! A search finds points by meaning and by keyword, and fuses both rankings within its filter.

use std::collections::BTreeSet;

use elf::config::Bm25Options;
use elf::index::{CollectionSpec, UpsertMode};

use super::{EAST, NORTH, UP};
use crate::setup::{Bench, id, ids, noon, point, query, spec};

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
