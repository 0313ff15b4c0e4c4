//! A search finds points by meaning and by keyword, and fuses both rankings within its filter.

use elf::config::{Bm25Options, Tokenizer};
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
        ascii_folding: true,
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

/// Makes a collection with these texts as the points 1, 2…
async fn filled(bench: &Bench, bm25: Bm25Options, texts: &[&str]) {
    bench
        .index
        .create_collection(&bench.name, &CollectionSpec { bm25, ..spec() })
        .await
        .unwrap();
    let points = (1..)
        .zip(texts)
        .map(|(n, text)| point(n, UP, text))
        .collect::<Vec<_>>();
    bench
        .index
        .upsert(&bench.name, &points, UpsertMode::NotNewer)
        .await
        .unwrap();
}

async fn found_by(bench: &Bench, words: &str) -> Vec<Uuid> {
    by_keyword(&bench.search(&query(UP, words)).await)
}

/// Each has an id of its own: 5501, 5502…
const TEXTS_WITH_IDS: [&str; 14] = [
    "警報GX-5501が出たら弁を閉める",
    "请检查错误GX-5502的原因，然后重新启动水泵",
    "오류GX-5503에서 밸브를 닫으세요",
    "ข้อผิดพลาดGX-5504เกิดขึ้น",
    "ошибкаGX-5505появилась",
    "שגיאהGX-5506הופיעה",
    "警報ＧＸ－５５０７が",
    "When \"GX-5508\" shows, close the valve.",
    "gx_5509: closed (see GX5509)",
    "The pump said GX\u{2011}5510 all night.",
    "La vanne «gx-5511» est fermée.",
    "型番はGX/5512です。カタログを見る。",
    "GX-55\u{ad}13",
    "(GX–5514)",
];

pub async fn an_id_is_found_however_it_is_written_with_every_tokenizer(bench: Bench) {
    let words = Bm25Options::default();
    let all = [
        words.clone(),
        Bm25Options {
            language: "none".into(),
            ascii_folding: true,
            ..words.clone()
        },
        Bm25Options {
            tokenizer: Tokenizer::Multilingual,
            ..words.clone()
        },
        Bm25Options {
            tokenizer: Tokenizer::Multilingual,
            language: "japanese".into(),
            ascii_folding: true,
            stopwords: vec!["gx".into()],
            ..words
        },
    ];
    for bm25 in all {
        bench.index.drop_collection(&bench.name).await.unwrap();
        filled(&bench, bm25.clone(), &TEXTS_WITH_IDS).await;
        for n in 1..=14 {
            let number = 5500 + n;
            for written in [
                format!("GX-{number}"),
                format!("\"gx-{number}\""),
                format!("Gx\u{2010}{number}"),
                format!("ＧＸ－{number}"),
                format!("吧gx_{number}吧"),
                format!("what does GX {number} mean?"),
                number.to_string(),
            ] {
                let found = found_by(&bench, &written).await;
                assert_eq!(found.first(), Some(&id(n)), "{written} with {bm25:?}");
            }
        }
    }
}

pub async fn a_multilingual_tokenizer_knows_the_words_of_a_text_without_spaces(bench: Bench) {
    let bm25 = Bm25Options {
        tokenizer: Tokenizer::Multilingual,
        ..Bm25Options::default()
    };
    let texts = [
        "今天北京下雨，我们在家里喝茶。",
        "本日の日付はカレンダーで確認できます。",
        "Brûlé and the pumps of Kubernetes",
        "このテキストは日本語です。Kubernetesとpumpsとbrûléのことを書いています。",
    ];
    filled(&bench, bm25, &texts).await;
    assert_eq!(found_by(&bench, "北京").await, [id(1)]);
    // The pair of letters at the border of two words is none.
    assert!(found_by(&bench, "天北").await.is_empty());
    assert_eq!(found_by(&bench, "カレンダーで確認").await[0], id(2));
    // A word of Latin letters is the same in every text, without accents, and no stemmer changes it.
    for word in ["KUBERNETES", "pumps", "brule", "Bru\u{302}le\u{301}"] {
        let mut found = found_by(&bench, word).await;
        found.sort();
        assert_eq!(found, sorted([3, 4]), "{word}");
    }
    assert!(found_by(&bench, "pump").await.is_empty());
    assert!(found_by(&bench, "and the of").await.is_empty());
}

pub async fn own_stopwords_do_not_count(bench: Bench) {
    let bm25 = Bm25Options {
        stopwords: vec!["Notiz".into(), "café".into()],
        ..Bm25Options::default()
    };
    filled(&bench, bm25, &["Notiz: the zebra", "A café"]).await;
    for word in ["notiz", "NOTIZ", "the", "CAFE\u{301}"] {
        assert!(found_by(&bench, word).await.is_empty(), "{word}");
    }
    assert_eq!(found_by(&bench, "notiz zebras").await, [id(1)]);
}

pub async fn how_a_graph_is_searched_changes_no_answer_of_a_few_points(bench: Bench) {
    fill_with_notes(&bench).await;
    for (hnsw_ef, exact) in [(None, true), (Some(1), false), (Some(512), true)] {
        let query = elf::index::Query {
            hnsw_ef,
            exact,
            ..query([0.0, 1.0, 0.1, 0.0], "prime")
        };
        let found = bench.search(&query).await;
        assert_eq!(by_meaning(&found)[0], id(2));
        assert_eq!(by_keyword(&found), [id(3)]);
    }
}
