//! A search finds points by meaning and by keyword, and fuses both rankings within its filter.

use elf::config::Bm25Options;
use elf::index::{CollectionSpec, UpsertMode};
use uuid::Uuid;

use super::{EAST, NORTH, UP};
use crate::setup::{Bench, by_keyword, by_meaning, id, ids, noon, point, query, spec};

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
        .upsert(&bench.name, &notes, UpsertMode::NotNewer)
        .await
        .unwrap();
}

pub async fn search_finds_by_meaning_and_by_exact_word(bench: Bench) {
    fill_with_notes(&bench).await;
    // By meaning: the words are in no note.
    let found = bench.search(&query([0.0, 1.0, 0.1, 0.0], "zzz")).await;
    assert_eq!(by_meaning(&found)[0], id(2));
    assert!(by_keyword(&found).is_empty());
    // By the exact word, against what the vector says.
    let found = bench.search(&query(NORTH, "xk-4711")).await;
    assert_eq!(by_meaning(&found)[0], id(2));
    assert_eq!(by_keyword(&found), [id(3)]);
    // Stemmed: "pumps" is "pump".
    let found = bench.search(&query(NORTH, "pumps")).await;
    assert_eq!(by_keyword(&found), [id(3)]);
}

pub async fn a_candidate_of_one_ranking_has_the_score_of_the_other(bench: Bench) {
    fill_with_notes(&bench).await;
    // With one candidate a ranking: note 2 by meaning, note 3 by word.
    let found = bench
        .search(&elf::index::Query {
            candidates: 1,
            ..query(NORTH, "prime")
        })
        .await;
    assert_eq!(by_meaning(&found), [id(2), id(3)]);
    let cosine = |n: u64| {
        let found = found.iter().find(|c| c.chunk_id == id(n)).unwrap();
        found.dense.unwrap()
    };
    assert!((cosine(2) - 1.0).abs() < 1e-5, "{found:?}");
    assert!(cosine(3).abs() < 1e-5, "{found:?}");
    assert_eq!(by_keyword(&found), [id(3)]);
    // The nearest note has the word too, but is not among the best by word: it has its score.
    let points = (10..20).map(|n| point(n, UP, "prime prime prime"));
    let nearest = point(
        20,
        NORTH,
        "a long text that says prime once, and much else besides",
    );
    bench
        .index
        .upsert(
            &bench.name,
            &points.chain([nearest]).collect::<Vec<_>>(),
            UpsertMode::NotNewer,
        )
        .await
        .unwrap();
    let found = bench
        .search(&elf::index::Query {
            candidates: 2,
            ..query(NORTH, "prime")
        })
        .await;
    let nearest = found.iter().find(|c| c.chunk_id == id(20)).unwrap();
    assert!(nearest.bm25 > 0.0, "{found:?}");
    let best = found.iter().map(|c| c.bm25).fold(0.0, f32::max);
    assert!(nearest.bm25 < best, "{found:?}");
}

pub async fn a_search_ranks_by_meaning_or_by_keyword_alone(bench: Bench) {
    fill_with_notes(&bench).await;
    let both = query(EAST, "disk");
    let by_word = elf::index::Query {
        vector: None,
        ..both.clone()
    };
    let found = bench.search(&by_word).await;
    assert_eq!(ids(&found), [id(2)]);
    assert_eq!(found[0].dense, None);
    let by_vector = elf::index::Query {
        words: None,
        candidates: 2,
        ..both.clone()
    };
    let found = bench.search(&by_vector).await;
    assert_eq!(by_meaning(&found), [id(1), id(4)]);
    assert!(by_keyword(&found).is_empty());
    let neither = elf::index::Query {
        vector: None,
        words: None,
        ..both
    };
    assert!(bench.search(&neither).await.is_empty());
}

pub async fn a_text_without_words_is_still_found_by_meaning(bench: Bench) {
    bench.create().await;
    let points = vec![point(1, EAST, "!!! the and of ???"), point(2, NORTH, "")];
    bench
        .index
        .upsert(&bench.name, &points, UpsertMode::NotNewer)
        .await
        .unwrap();
    for text in ["", "the of and", "…", "words that nobody wrote"] {
        let found = bench.search(&query(EAST, text)).await;
        assert_eq!(by_meaning(&found), [id(1), id(2)], "searching {text:?}");
        assert!(by_keyword(&found).is_empty(), "searching {text:?}");
    }
}

pub async fn search_never_leaves_its_filter(bench: Bench) {
    bench.create().await;
    let mut theirs = point(1, EAST, "a secret word");
    theirs.payload.note.labels.tenant_id = "them".into();
    let mut expired = point(2, EAST, "a secret word");
    expired.payload.note.expires_at = Some(noon());
    let ours = point(3, NORTH, "nothing");
    let points = vec![theirs, expired, ours];
    bench
        .index
        .upsert(&bench.name, &points, UpsertMode::NotNewer)
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
        .upsert(&bench.name, &points, UpsertMode::NotNewer)
        .await
        .unwrap();
    let by_word =
        async |word: &str| by_keyword(&bench.search(&query([0.5, 0.5, 0.5, 0.0], word)).await);
    assert!(by_word("pump").await.is_empty());
    assert_eq!(by_word("PUMPS").await, [id(1)]);
    // Neither English nor Basque stopwords are taken out.
    assert_eq!(by_word("the").await, [id(3)]);
    assert_eq!(by_word("eta").await, [id(2)]);
}

fn sorted<const N: usize>(points: [u64; N]) -> Vec<Uuid> {
    let mut ids = points.map(id).to_vec();
    ids.sort();
    ids
}

pub async fn a_word_is_found_in_every_form_and_script(bench: Bench) {
    bench.create().await;
    let points = vec![
        point(1, EAST, "Br\u{fb}l\u{e9}"),
        point(2, EAST, "Bru\u{302}le\u{301}"),
        point(3, NORTH, "Brule"),
        point(4, UP, "警報GX-5521が出たら弁を開める"),
        point(5, UP, "型番はTR2200です"),
        point(6, UP, "เครื่องTR2200เสีย"),
        point(7, UP, "警報ＧＸ－５５２１"),
    ];
    bench
        .index
        .upsert(&bench.name, &points, UpsertMode::NotNewer)
        .await
        .unwrap();
    let by_word = async |word: &str| {
        let mut found = by_keyword(&bench.search(&query([0.5, 0.5, 0.5, 0.0], word)).await);
        found.sort();
        found
    };
    for word in ["Br\u{fb}l\u{e9}", "bru\u{302}le\u{301}"] {
        assert_eq!(by_word(word).await, sorted([1, 2]), "{word}");
    }
    assert_eq!(by_word("GX-5521").await, sorted([4, 7]));
    assert_eq!(by_word("ＧＸ-5521").await, sorted([4, 7]));
    assert_eq!(by_word("TR2200").await, sorted([5, 6]));
    // A word of two letters inside of a run.
    assert_eq!(by_word("警報").await, sorted([4, 7]));
}

pub async fn accents_are_folded_by_a_setting(bench: Bench) {
    let bm25 = Bm25Options {
        fold_accents: true,
        ..Bm25Options::default()
    };
    bench
        .index
        .create_collection(&bench.name, &CollectionSpec { bm25, ..spec() })
        .await
        .unwrap();
    let points = vec![
        point(1, EAST, "Br\u{fb}l\u{e9}"),
        point(2, EAST, "Bru\u{302}le\u{301}"),
        point(3, NORTH, "Brule"),
        point(4, UP, "Straße, Øresund, καφέ"),
    ];
    bench
        .index
        .upsert(&bench.name, &points, UpsertMode::NotNewer)
        .await
        .unwrap();
    let by_word = async |word: &str| {
        let mut found = by_keyword(&bench.search(&query([0.5, 0.5, 0.5, 0.0], word)).await);
        found.sort();
        found
    };
    for word in ["brule", "Br\u{fb}l\u{e9}", "bru\u{302}le\u{301}"] {
        assert_eq!(by_word(word).await, sorted([1, 2, 3]), "{word}");
    }
    for word in ["strasse", "oresund", "καφε"] {
        assert_eq!(by_word(word).await, [id(4)], "{word}");
    }
}
