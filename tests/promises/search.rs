//! What a search shows: never what a note said before, and no gap while a note is indexed again.

use elf::cli::wiring;
use elf::config::FusionMethod;
use elf::index::IndexError;
use elf::search::{By, Item, Missing, Request};
use elf::worker::Checkpoint;
use uuid::Uuid;

use crate::support::harness::{Harness, sentences};
use crate::support::hooked::{Hooked, Verb, When};
use crate::support::site::Site;

async fn search(h: &Harness, text: &str, by: By) -> Vec<Item> {
    let searcher = wiring::searcher(&h.pipeline, &h.config).await.unwrap();
    // More than there are notes: every candidate is shown.
    let request = Request {
        by,
        ..Request::hybrid(text, 100)
    };
    let answer = searcher.search(&request).await.unwrap();
    assert_eq!(answer.degraded, []);
    answer.items
}

/// A database of some notes, one of which says `text`.
async fn with_note(text: &str) -> (Harness, Uuid) {
    let h = Harness::start().await;
    for n in 0..30 {
        h.insert(&sentences(3, &format!("matter {n}"))).await;
    }
    let note = h.insert(text).await;
    h.drain().await;
    (h, note)
}

#[tokio::test]
async fn an_index_that_goes_away_after_the_candidates_is_done_without() {
    let (mut h, note) = with_note("The zebra sleeps under the baobab.").await;
    let index = Hooked::over(&h.pipeline.serving.index);
    index.fail(When::Before, Verb::Points, away());
    h.pipeline.serving.index = index.clone();
    let searcher = wiring::searcher(&h.pipeline, &h.config).await.unwrap();
    let request = Request::hybrid("zebra baobab", 5);
    let answer = searcher.search(&request).await.unwrap();
    assert_eq!(answer.items[0].note_id, note);
    let missing: Vec<Missing> = answer.degraded.iter().map(|part| part.code).collect();
    assert_eq!(missing, [Missing::Index]);
    assert!(answer.degraded[0].reason.contains("it went away"));
    let calls = |verb| index.calls(verb);
    assert_eq!((calls(Verb::Search), calls(Verb::Points)), (1, 1));
}

#[tokio::test]
async fn the_questions_about_the_example_notes_are_answered_by_keyword() {
    let site = Site::start().await;
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/questions");
    let report = site.json(&["eval", folder]).await;
    assert_eq!(
        (&report["queries"], &report["documents"]),
        (&88.into(), &71.into())
    );
    let bm25 = |measure: &str| report["bm25"][measure].as_f64().unwrap();
    // The provider of the tests has no idea of meaning; keywords find most answers.
    assert!(bm25("recall") > 0.6, "{report}");
    assert!(bm25("context_recall") >= bm25("span_recall"), "{report}");
    assert!(bm25("span_recall") > 0.2, "{report}");
    assert!(bm25("recall") > report["dense"]["recall"].as_f64().unwrap());
}

#[tokio::test]
async fn a_search_says_how_sure_it_is_and_that_nothing_is_near() {
    let (mut h, note) = with_note("The zebra sleeps under the baobab.").await;
    // The vectors of the tests know no meaning.
    let ask = async |h: &Harness, text: &str, by: By| {
        let searcher = wiring::searcher(&h.pipeline, &h.config).await.unwrap();
        let request = Request {
            by,
            ..Request::hybrid(text, 10)
        };
        searcher.search(&request).await.unwrap()
    };
    let found = ask(&h, "the zebra and its baobab", By::Hybrid).await;
    assert_eq!(found.items[0].note_id, note);
    assert!(found.items[0].relevance.unwrap() > 0.5, "{found:?}");
    assert!(!found.nothing_near);
    let foreign = "the matter of a xylophone in the orchestra";
    let none = ask(&h, foreign, By::Bm25).await;
    assert!(none.nothing_near && !none.items.is_empty(), "{none:?}");

    h.config.search.min_relevance = 0.3;
    let none = ask(&h, foreign, By::Bm25).await;
    assert!(none.nothing_near && none.items.is_empty(), "{none:?}");
    let found = ask(&h, "the zebra and its baobab", By::Bm25).await;
    assert_eq!(found.items.len(), 1, "{found:?}");
}

#[tokio::test]
async fn among_too_few_notes_a_search_does_not_say_how_sure_it_is() {
    let h = Harness::start().await;
    h.insert("The zebra sleeps under the baobab.").await;
    h.drain().await;
    let items = search(&h, "a xylophone", By::Hybrid).await;
    assert_eq!(items[0].relevance, None);
    // Without a vector, the words are all that counts.
    let items = search(&h, "zebra baobab", By::Bm25).await;
    assert!(items[0].relevance.unwrap() > 0.9, "{items:?}");
}

#[tokio::test]
async fn the_only_note_with_an_id_is_first_and_no_weak_hit_in_every_mode() {
    let (mut h, note) = with_note("The code ERR-4417 means that the gauge is frozen.").await;
    let glued = h.insert("设备显示ERR-9921错误，请重启设备。").await;
    h.drain().await;
    h.config.search.min_relevance = 0.3;
    for fusion in [
        FusionMethod::Adaptive,
        FusionMethod::Dbsf,
        FusionMethod::Rrf,
    ] {
        h.config.search.fusion = fusion;
        let searcher = wiring::searcher(&h.pipeline, &h.config).await.unwrap();
        for (query, by, note) in [
            ("ERR-4417", By::Hybrid, note),
            ("err 4417", By::Hybrid, note),
            ("\"ERR-4417\"", By::Hybrid, note),
            ("what does ERR-4417 mean?", By::Hybrid, note),
            ("ERR-4417", By::Bm25, note),
            ("err-9921", By::Hybrid, glued),
            ("ERR-9921", By::Bm25, glued),
        ] {
            let request = Request {
                by,
                ..Request::hybrid(query, 5)
            };
            let answer = searcher.search(&request).await.unwrap();
            let first = answer.items.first().map(|item| item.note_id);
            assert_eq!(first, Some(note), "{query} {by:?} {fusion:?}: {answer:?}");
        }
    }
}

#[tokio::test]
async fn a_query_that_is_a_document_does_not_find_itself() {
    let site = Site::start().await;
    let line = |id: &str, text: &str| {
        format!(
            "{}\n",
            serde_json::json!({"_id": id, "title": null, "text": text})
        )
    };
    let twins = [
        ("a", "zebra baobab"),
        ("b", "zebra baobab acacia"),
        ("c", "gauge"),
    ];
    let corpus: String = twins.iter().map(|(id, text)| line(id, text)).collect();
    site.write("set/corpus.jsonl", corpus);
    // One is a document of the corpus, and the other has its id by chance.
    site.write(
        "set/queries.jsonl",
        line("a", "zebra baobab") + &line("c", "gauge"),
    );
    site.write("set/qrels/test.tsv", "a\tb\t1.0\r\nc\tc\t1.0\r\n");
    let report = site.json(&["eval", "set", "-k", "1"]).await;
    assert_eq!(
        (&report["queries"], &report["documents"]),
        (&2.into(), &3.into())
    );
    assert_eq!(report["bm25"]["mrr"], 1.0, "{report}");
}

#[tokio::test]
async fn of_equal_notes_the_important_ones_are_found() {
    let h = Harness::start().await;
    let mut notes = Vec::new();
    for _ in 0..45 {
        notes.push(h.insert("The heron stands in the reeds.").await);
    }
    let important = notes[30];
    let statement = "update memory_notes set importance = $2::real where note_id = $1";
    h.execute(statement, important, "1").await;
    h.drain().await;
    for limit in [1, 5, 20] {
        let searcher = wiring::searcher(&h.pipeline, &h.config).await.unwrap();
        let request = Request::hybrid("heron", limit);
        let answer = searcher.search(&request).await.unwrap();
        assert_eq!(answer.items[0].note_id, important, "limit {limit}");
    }
}

#[tokio::test]
async fn of_a_query_that_is_longer_than_a_chunk_the_beginning_is_embedded() {
    let (h, _) = with_note("The zebra sleeps under the baobab.").await;
    let query = format!("The zebra sleeps under the baobab. {}", sentences(60, "it"));
    let searcher = wiring::searcher(&h.pipeline, &h.config).await.unwrap();
    let request = Request {
        by: By::Dense,
        ..Request::hybrid(&query, 3)
    };
    let answer = searcher.search(&request).await.unwrap();
    assert!(answer.degraded.is_empty() && answer.items[0].dense.is_some());
    let sent = h.provider.texts_seen().pop().unwrap();
    assert!(
        query.starts_with(&sent) && sent.len() < query.len() / 4,
        "{sent}"
    );
}

#[tokio::test]
async fn the_chunks_of_a_long_note_hide_no_other_note() {
    let (h, long) = with_note(&sentences(400, "the zebra")).await;
    let mut wanted = vec![long];
    for n in 0..5 {
        wanted.push(
            h.insert(&format!("Among other things, note {n} has a zebra."))
                .await,
        );
    }
    h.drain().await;
    let searcher = wiring::searcher(&h.pipeline, &h.config).await.unwrap();
    let request = Request {
        by: By::Bm25,
        ..Request::hybrid("zebra", 10)
    };
    let answer = searcher.search(&request).await.unwrap();
    let mut found: Vec<Uuid> = answer.items.iter().map(|item| item.note_id).collect();
    found.sort();
    wanted.sort();
    assert_eq!(found, wanted);
}

#[tokio::test]
async fn a_small_chunk_is_found_and_shown_in_its_parent() {
    let h = Harness::start_with(|config| {
        config.replace("[chunking]\n", "[chunking]\nparent_tokens = 400\n")
    })
    .await;
    let text = format!(
        "{}\n\nThe library opens at nine. {}",
        sentences(60, "the zebra"),
        sentences(60, "the ferry")
    );
    let note = h.insert(&text).await;
    h.drain().await;
    let embedded = h.provider.texts_seen().len();
    let found = search(&h, "library opens", By::Bm25).await;
    let (item, context) = (&found[0], &found[0].context);
    assert_eq!(
        &text[context.start_offset..context.end_offset],
        context.text
    );
    assert!(context.start_offset <= item.start_offset && item.end_offset <= context.end_offset);
    assert!(context.text.len() > 4 * item.text.len(), "{context:?}");

    // Chunks whose text stays get new parents, without one embedding.
    let parent = async |chunk: Uuid| -> (i32, i32) {
        sqlx::query_as("select parent_start_offset, parent_end_offset from memory_note_chunks where chunk_id = $1")
            .bind(chunk)
            .fetch_one(&h.pool)
            .await
            .unwrap()
    };
    let before = parent(item.chunk_id).await;
    assert_eq!(
        before,
        (context.start_offset as i32, context.end_offset as i32)
    );
    h.edit(note, &text[..item.end_offset]).await;
    h.drain().await;
    assert_eq!(h.provider.texts_seen().len(), embedded);
    let after = parent(item.chunk_id).await;
    assert_eq!(after, (before.0, item.end_offset as i32));
}

#[tokio::test]
async fn a_chunk_behind_a_long_gap_is_no_context() {
    let gap = " ".repeat(100_000);
    let (h, note) = with_note(&format!("A zebra. {gap} A library. {gap} A ferry.")).await;
    let found = search(&h, "library", By::Bm25).await;
    assert_eq!((found.len(), found[0].note_id), (1, note));
    assert_eq!(found[0].context.text, "A library.");
}

#[tokio::test]
async fn a_point_that_is_older_than_its_note_is_not_found_by_its_old_words() {
    let (h, note) = with_note("The zebra sleeps under the baobab.").await;
    let found = search(&h, "zebra", By::Bm25).await;
    assert_eq!(
        found.iter().map(|item| item.note_id).collect::<Vec<_>>(),
        [note]
    );

    h.edit(note, "The library opens at nine.").await;
    let held = h.held_at(Checkpoint::Committed).await;
    // The point still has the zebra.
    assert!(search(&h, "zebra", By::Bm25).await.is_empty());
    let found = search(&h, "The library opens at nine.", By::Hybrid).await;
    let item = found.iter().find(|item| item.note_id == note).unwrap();
    assert_eq!(item.text, "The library opens at nine.");
    assert_eq!(item.bm25, 0.0);
    assert!(
        (item.dense.unwrap() - 1.0).abs() < 1e-4,
        "scored by what it says now: {item:?}"
    );
    let found = search(&h, "The zebra sleeps under the baobab.", By::Hybrid).await;
    let item = found.iter().find(|item| item.note_id == note).unwrap();
    assert!(item.dense.unwrap() < 0.999 && item.bm25 == 0.0, "{item:?}");

    held.open();
    held.kill().await;
    h.expire_leases().await;
    h.drain_with_retries().await;
    let found = search(&h, "library", By::Bm25).await;
    assert_eq!(found[0].note_id, note);
}

#[tokio::test]
async fn a_note_stays_findable_between_the_commit_and_its_points() {
    let text = "The zebra sleeps under the baobab.";
    let (h, note) = with_note(text).await;
    let statement = "update memory_notes set type = type || $2 where note_id = $1";
    h.execute(statement, note, "!").await;
    let held = h.held_at(Checkpoint::Committed).await;
    let found = search(&h, text, By::Hybrid).await;
    assert_eq!(found[0].note_id, note);
    held.open();
    held.kill().await;
}

/// Writes a set of 40 documents, each with a word that one query asks for.
fn write_gates(site: &Site) {
    let folder = site.path("set");
    std::fs::create_dir_all(folder.join("qrels")).unwrap();
    let (mut corpus, mut queries, mut qrels) =
        (String::new(), String::new(), String::from("q\td\ts\n"));
    for n in 0..40 {
        let text = format!(
            "{} The password of gate {n} is qx{n}zz.",
            sentences(2, "gates")
        );
        corpus += &format!(
            "{}\n",
            serde_json::json!({"_id": format!("d{n}"), "text": text})
        );
        let query = serde_json::json!({"_id": format!("q{n}"), "text": format!("qx{n}zz")});
        queries += &format!("{query}\n");
        // Query 0 has an answer that no search can find.
        let answer = if n == 0 { 39 } else { n };
        qrels += &format!("q{n}\td{answer}\t1\n");
    }
    std::fs::write(folder.join("corpus.jsonl"), corpus).unwrap();
    std::fs::write(folder.join("queries.jsonl"), queries).unwrap();
    std::fs::write(folder.join("qrels/test.tsv"), qrels).unwrap();
}

#[tokio::test]
async fn an_evaluation_that_cannot_delete_its_notes_reports_and_the_next_one_deletes_them() {
    let site = Site::start().await;
    write_gates(&site);
    let mut database = site.connect().await;
    sqlx::raw_sql(
        "create function refuse() returns trigger language plpgsql as
             $$ begin raise exception 'held back'; end $$;
         create trigger refuse before delete on memory_notes for each row execute function refuse()",
    )
    .execute(&mut database)
    .await
    .unwrap();
    let done = site.elf(&["eval", "set", "--json"]).await.exits(0);
    let done = done.says(&["notes of the evaluation are left", "held back"]);
    assert_eq!(done.json()["queries"], 40);
    let mut left = async || -> i64 {
        sqlx::query_scalar("select count(*) from memory_notes")
            .fetch_one(&mut database)
            .await
            .unwrap()
    };
    assert_eq!(left().await, 40);
    sqlx::raw_sql("drop trigger refuse on memory_notes")
        .execute(&mut site.connect().await)
        .await
        .unwrap();
    site.json(&["eval", "set"]).await;
    assert_eq!(left().await, 0);
}

#[tokio::test]
async fn an_evaluation_measures_and_leaves_nothing_behind() {
    let site = Site::start().await;
    write_gates(&site);
    let own = site.note("A note of the application.").await;

    let report = site.json(&["eval", "set"]).await;
    assert_eq!(report["queries"], 40);
    assert_eq!(report["documents"], 40);
    // Each query has one word, which one document has.
    assert_eq!(report["bm25"]["mrr"], 39.0 / 40.0);
    assert_eq!(report["bm25"]["recall"], 39.0 / 40.0);
    for by in ["dense", "bm25", "hybrid"] {
        for measure in ["ndcg", "mrr", "map", "recall", "precision", "zero_results"] {
            let value = report[by][measure].as_f64().unwrap();
            assert!((0.0..=1.0).contains(&value), "{by} {measure}: {value}");
        }
        assert!(report[by]["p50_ms"].as_f64().unwrap() > 0.0);
    }
    assert!(report["hybrid"]["mrr"].as_f64().unwrap() > 0.9, "{report}");
    assert!(
        report["p_hybrid_dense"].as_f64().unwrap() < 0.01,
        "{report}"
    );

    // The application's note is indexed and still there; the documents are gone from Postgres and
    // the index.
    let mut database = site.connect().await;
    let left: Vec<Uuid> = sqlx::query_scalar("select note_id from memory_notes")
        .fetch_all(&mut database)
        .await
        .unwrap();
    assert_eq!(left, [own]);
    let chunks: i64 = sqlx::query_scalar("select count(*) from memory_note_chunks")
        .fetch_one(&mut database)
        .await
        .unwrap();
    let status = site.json(&["status"]).await;
    assert_eq!(status["collection"]["points"], chunks);

    // Against a report of the same searches, and of better ones.
    site.write("before.json", report.to_string());
    let gate = ["eval", "set", "--gate", "--against", "before.json"];
    let again = site.json(&gate).await;
    assert_eq!(again["comparison"]["ndcg"], report["hybrid"]["ndcg"]);
    assert_eq!(again["comparison"]["worse"], 0);
    let mut better = report.clone();
    better["hybrid"]["ndcg"] = 1.1.into();
    for ndcg in better["hybrid"]["ndcg_by_query"].as_object_mut().unwrap() {
        *ndcg.1 = 1.1.into();
    }
    site.write("before.json", better.to_string());
    let worse = site.elf(&gate).await;
    worse.exits(1).says(&["finds less than before"]);
    site.elf(&gate[..2]).await.exits(0);

    // Kept documents are not embedded again.
    site.json(&["eval", "set", "--keep"]).await;
    let paid = site.provider.texts_seen().len();
    site.json(&["eval", "set", "--keep"]).await;
    assert_eq!(
        site.provider.texts_seen().len(),
        paid + 40,
        "each query once, and no document"
    );
}

/// Trials of chunking, of fusion, and of BM25: each takes another way to its index.
#[tokio::test]
async fn an_evaluation_tries_other_settings_in_a_place_of_its_own() {
    let site = Site::start().await;
    write_gates(&site);
    let own = site.note("A note of the application.").await;
    site.elf(&["worker", "--once"]).await.exits(0);
    let before = site.json(&["status"]).await;
    let seen = site.provider.texts_seen().len();
    let mut database = site.connect().await;
    let mut databases = async || -> Vec<String> {
        sqlx::query_scalar(
            "select datname::text from pg_database where datname like 'elf\\_eval\\_%'",
        )
        .fetch_all(&mut database)
        .await
        .unwrap()
    };
    let others = databases().await;

    let tried = site
        .json(&[
            "eval",
            "set",
            "--try",
            "storage.qdrant.bm25.k = 0.1",
            "--try",
            "chunking.max_tokens = 16, chunking.overlap_tokens = 0",
            "--try",
            "search.fusion = \"rrf\"",
        ])
        .await;
    let trials = tried["trials"].as_array().unwrap();
    let settings = trials.iter().map(|trial| trial["settings"].as_str());
    let settings: Vec<&str> = settings.map(Option::unwrap).collect();
    assert_eq!(settings[0], "as configured");
    assert!(
        settings[2].starts_with("chunking.max_tokens"),
        "{settings:?}"
    );
    let number = |trial: usize, field: &str| trials[trial][field].as_u64().unwrap();
    assert!(number(2, "chunks") > number(0, "chunks"), "{tried}");
    assert_eq!(number(0, "chunks"), number(1, "chunks"));
    assert_eq!(number(0, "tokens"), number(3, "tokens"));
    for trial in trials {
        let [low, high] = [0, 1].map(|end| trial["ndcg_interval"][end].as_f64().unwrap());
        let ndcg = trial["hybrid"]["ndcg"].as_f64().unwrap();
        assert!(low <= ndcg && ndcg <= high && low < high, "{trial}");
        assert_eq!(trial["bm25"]["mrr"], 39.0 / 40.0, "{trial}");
    }
    assert!(trials[0]["comparison"].is_null());
    assert!(trials[3]["comparison"]["p"].is_number());
    // The two that differ in BM25 and in fusion embed no document.
    let mut texts = site.provider.texts_seen().split_off(seen);
    texts.retain(|text| text.contains("password of gate"));
    let chunks = number(0, "chunks") + number(2, "chunks");
    assert!(texts.len() as u64 <= chunks, "{} of {chunks}", texts.len());

    // Nothing is left, and nothing of the application has changed.
    assert_eq!(databases().await, others);
    let folders = std::fs::read_dir(site.path("")).unwrap();
    let names = folders.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert!(!names.into_iter().any(|name| name.contains("elf_eval")));
    let after = site.json(&["status"]).await;
    assert_eq!(after["collection"], before["collection"]);
    let notes: Vec<Uuid> = sqlx::query_scalar("select note_id from memory_notes")
        .fetch_all(&mut database)
        .await
        .unwrap();
    assert_eq!(notes, [own]);

    // What cannot be tried says so before anything is made.
    for (settings, says) in [
        ("chunking.max_tokens = 0", "chunking.max_tokens"),
        ("chunking.maxtokens = 16", "max_tokens"),
        ("chunking.max_tokens 16", "--try"),
        ("", "there are none"),
        (
            "providers.embedding.api_key = \"hunter2\"",
            "api_key is a secret",
        ),
        (
            "providers.embedding.headers = { x = \"hunter2\" }",
            "headers may be secrets",
        ),
        ("providers.embedding.api_key = \"hunter2", "--try"),
        ("worker.lease_secs = 60", "a trial may differ in"),
    ] {
        let done = site.elf(&["eval", "set", "--try", settings]).await;
        assert_ne!(done.code, Some(0), "{settings}");
        assert!(!done.stderr.contains("hunter2"), "{}", done.stderr);
        done.says(&[says]);
    }
}

#[tokio::test]
async fn of_notes_that_say_the_same_a_diverse_answer_has_one_first() {
    let mut h = Harness::start().await;
    let copies = [
        h.insert("The zebra sleeps under the old baobab tree.")
            .await,
        h.insert("The zebra sleeps under the old baobab tree.")
            .await,
        h.insert("The zebra sleeps under the old baobab tree.")
            .await,
    ];
    let other = h.insert("A zebra.").await;
    h.drain().await;
    let found = async |h: &Harness| -> Vec<Uuid> {
        let searcher = wiring::searcher(&h.pipeline, &h.config).await.unwrap();
        let request = Request {
            by: By::Bm25,
            ..Request::hybrid("the zebra under the old baobab", 2)
        };
        let answer = searcher.search(&request).await.unwrap();
        let items = answer.items.iter();
        let traced = answer.trace.chunks.iter().filter(|c| c.rank.is_some());
        let is_diverse = h.config.search.mmr_lambda < 1.0;
        assert!(traced.into_iter().all(|c| c.mmr.is_some() == is_diverse));
        items.map(|item| item.note_id).collect()
    };
    let alike = found(&h).await;
    assert!(alike.iter().all(|note| copies.contains(note)), "{alike:?}");
    // The test provider gives texts without a word in common vectors that may be alike.
    h.config.search.mmr_lambda = 0.1;
    let diverse = found(&h).await;
    assert!(copies.contains(&diverse[0]), "{diverse:?}");
    assert_eq!(diverse[1], other);
}

/// What a note with an id says, and how a query may write that id.
const IDS: [(&str, &str, [&str; 4]); 3] = [
    (
        "请检查错误GX-5521的原因，然后重新启动水泵",
        "GX-5521",
        [
            "gx 5521",
            "\"gx-5521\"",
            "错误GX\u{2010}5521",
            "ＧＸ＿５５２１",
        ],
    ),
    (
        "Ask for part “TR/2200” when the pump is loud.",
        "tr-2200",
        ["TR 2200", "'tr/2200'", "«TR_2200»", "型番はTR-2200です"],
    ),
    (
        "The invoice INV2026-0917 was paid twice.",
        "inv2026 0917",
        [
            "Inv2026-0917",
            "(INV2026.0917)",
            "inv2026–0917?",
            "INV2026/0917",
        ],
    ),
];

#[tokio::test]
async fn the_note_with_an_exact_id_is_first_in_every_mode() {
    for bm25 in [
        "language = \"english\"",
        "language = \"none\"\nascii_folding = true",
        "tokenizer = \"multilingual\"\nstopwords = [\"pump\"]",
    ] {
        let with_options = |toml| format!("{toml}\n[storage.qdrant.bm25]\n{bm25}\n");
        let mut h = Harness::start_with(with_options).await;
        for n in 0..30 {
            // These have all words of the questions but the ids.
            h.insert(&format!(
                "What does the code mean? Matter {n} has a part and an invoice, part of the code."
            ))
            .await;
        }
        let mut notes = Vec::new();
        for (text, ..) in IDS {
            notes.push(h.insert(text).await);
        }
        h.drain().await;
        let index = Hooked::over(&h.pipeline.serving.index);
        h.pipeline.serving.index = index.clone();
        for fusion in [
            FusionMethod::Adaptive,
            FusionMethod::Dbsf,
            FusionMethod::Rrf,
        ] {
            h.config.search.fusion = fusion;
            h.config.search.exact = fusion == FusionMethod::Dbsf;
            let searcher = wiring::searcher(&h.pipeline, &h.config).await.unwrap();
            for by in [By::Hybrid, By::Bm25] {
                for ((_, id, forms), note) in IDS.iter().zip(&notes) {
                    let question = format!("what does {id} mean, which code?");
                    let questions = (fusion == FusionMethod::Adaptive).then_some(question.as_str());
                    for text in forms.iter().copied().chain([*id]).chain(questions) {
                        let request = Request {
                            by,
                            ..Request::hybrid(text, 5)
                        };
                        let found = searcher.search(&request).await.unwrap().items;
                        assert_eq!(found[0].note_id, *note, "{text} {by:?} {fusion:?} {bm25}");
                    }
                }
            }
        }
        index.fail(When::Before, Verb::Search, away());
        let searcher = wiring::searcher(&h.pipeline, &h.config).await.unwrap();
        for ((_, id, _), note) in IDS.iter().zip(&notes) {
            let question = format!("what does {id} mean, which code?");
            for text in [*id, question.as_str()] {
                let request = Request {
                    by: By::Bm25,
                    ..Request::hybrid(text, 5)
                };
                let answer = searcher.search(&request).await.unwrap();
                assert_eq!(answer.degraded[0].code, Missing::Index);
                assert_eq!(answer.items[0].note_id, *note, "{text} in Postgres");
            }
        }
    }
}

fn away() -> IndexError {
    IndexError::Unavailable {
        engine: "the engine".into(),
        reason: "it went away".into(),
    }
}
