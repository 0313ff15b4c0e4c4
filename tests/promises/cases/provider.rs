//! What embedding servers, and what is before them, answer.

use elf::cli::wiring;
use elf::search::{Missing, Request, Searcher};

use super::Case;
use crate::support::embedding_server::{Base64, Behaviour, Dialect, Indexes, When};
use crate::support::harness::Harness;
use crate::support::site::Site;

async fn insert(h: &Harness, case: &Case, file: &str) {
    let statement = sqlx::AssertSqlSafe(case.text(file));
    sqlx::raw_sql(statement).execute(&h.pool).await.unwrap();
}

/// Works until only dead letters are left, and fails unless the note with the key `bad` is the
/// only one, for a reason with `words` in it, and nothing has paused.
async fn bad_alone_is_dead_lettered(h: &Harness, words: &[&str]) {
    h.drain_with_retries().await;
    let dead: Vec<(String, String)> = sqlx::query_as(
        "select n.key, o.last_error from indexing_outbox o join memory_notes n using (note_id)",
    )
    .fetch_all(&h.pool)
    .await
    .unwrap();
    let [(key, reason)] = &dead[..] else {
        panic!("{words:?}: {dead:?}");
    };
    assert_eq!(key, "bad", "{reason}");
    for word in words {
        assert!(reason.contains(word), "{word:?} is not in {reason:?}");
    }
    assert!(!reason.chars().any(char::is_control), "{reason:?}");
    let others = h.count("memory_notes where key <> 'bad'").await;
    assert_eq!(h.points().await.len() as i64, others);
    assert_eq!(h.pipeline.provider.state().error(), None);
}

async fn searcher(h: &Harness) -> Searcher {
    wiring::searcher(&h.pipeline, &h.config).await.unwrap()
}

pub async fn nul_in_a_message(case: Case) {
    for (file, words) in [
        ("answer-400.json", "bad input"),
        ("answer-400-raw.bin", "bad input"),
        ("answer-400-utf16.bin", "<html>bad input</html>"),
    ] {
        let h = Harness::start().await;
        let poisoned = Behaviour::Raw(400, case.bytes(file));
        h.provider.poison("poison", poisoned);
        insert(&h, &case, "notes.sql").await;
        bad_alone_is_dead_lettered(&h, &["400", words]).await;
    }
}

pub async fn forbidden_for_one_text(case: Case) {
    let h = Harness::start().await;
    let blocked = Behaviour::Raw(403, case.bytes("answer-403.html"));
    h.provider.poison("<script>", blocked.clone());
    insert(&h, &case, "notes.sql").await;
    bad_alone_is_dead_lettered(&h, &["403", "blocked by the firewall"]).await;

    let query: serde_json::Value = serde_json::from_str(&case.text("search.json")).unwrap();
    let searcher = searcher(&h).await;
    let bad = Request::hybrid(query["query"].as_str().unwrap(), 2);
    let plain = Request::hybrid("a colony of gannets", 2);
    let (bad, plain) = tokio::join!(searcher.search(&bad), searcher.search(&plain));
    let (bad, plain) = (bad.unwrap(), plain.unwrap());
    assert_eq!(bad.degraded.len(), 1, "{bad:?}");
    assert_eq!(bad.degraded[0].code, Missing::QueryVector);
    assert!(bad.degraded[0].reason.contains("403"), "{bad:?}");
    assert_eq!(plain.degraded, []);
    assert_eq!(h.pipeline.provider.state().error(), None);

    // Refused for all, it is configuration.
    h.provider.always(blocked);
    let answer = searcher.search(&Request::hybrid("another", 2)).await;
    assert_eq!(answer.unwrap().degraded[0].code, Missing::QueryVector);
    let error = h.pipeline.provider.state().error().unwrap().to_string();
    assert!(error.contains("configuration"), "{error}");
}

pub async fn failed_dependency(case: Case) {
    let answer = |status| Behaviour::Raw(status, case.bytes("answer-424.json"));
    let h = Harness::start_with(|toml| toml.replace("batch_notes = 16", "batch_notes = 256")).await;
    h.provider.rule(When::MoreThan(8), answer(424));
    insert(&h, &case, "notes-many.sql").await;
    let report = h.drain().await;
    assert_eq!((report.notes, report.failed), (200, 0));
    let requests = h.provider.requests();
    assert!(requests < 60, "{requests} for 25 requests of 8");

    for status in [
        401, 403, 404, 405, 409, 410, 413, 418, 422, 424, 451, 498, 499, 500, 502, 503, 504, 529,
    ] {
        let h = Harness::start().await;
        h.provider.poison("poison", answer(status));
        insert(&h, &case, "notes-one.sql").await;
        bad_alone_is_dead_lettered(&h, &[&status.to_string()]).await;
    }

    for status in [409, 424, 451, 498, 499, 503] {
        let site = Site::start().await;
        site.provider.always(answer(status));
        let worker = site.begin(&["worker"]);
        worker.says("waiting to start").await;
        site.provider.heal();
        worker.says("worker started").await;
        worker.stop().await.exits(0);
    }
}

pub async fn base64_answered_empty(case: Case) {
    for file in [
        "empty-data.json",
        "empty-list.json",
        "empty-string.json",
        "null-data.json",
        "null-embedding.json",
    ] {
        let site = Site::start().await;
        site.provider.speaks(Dialect {
            base64: Base64::Answered(case.text(file)),
            ..Dialect::default()
        });
        let h = Harness::over(site).await;
        h.insert("is found all the same").await;
        h.drain().await;
        h.assert_converged().await;
        let log = h.provider.request_log();
        let asked: Vec<_> = log.iter().map(|r| &r.body["encoding_format"]).collect();
        assert_eq!(asked[0], "base64", "{file}");
        assert!(asked.len() > 2, "{file}: {asked:?}");
        assert!(asked[1..].iter().all(|format| *format == "float"), "{file}");
    }
}

pub async fn index_left_out(case: Case) {
    let dialect = |indexes, fused| Dialect {
        indexes,
        fused,
        ..Dialect::default()
    };
    for (dialect, most) in [
        (dialect(Indexes::FirstLeftOut, false), 5),
        (dialect(Indexes::LeftOut, false), 5),
        (dialect(Indexes::FromOne, false), 5),
        (dialect(Indexes::Zero, false), 5),
        (dialect(Indexes::Given, true), 262),
    ] {
        let site = Site::start().await;
        site.configure("batch_notes = 16", "batch_notes = 256");
        site.provider.speaks(dialect.clone());
        let h = Harness::over(site).await;
        insert(&h, &case, "notes.sql").await;
        let report = h.drain().await;
        assert_eq!((report.notes, report.failed), (256, 0), "{dialect:?}");
        h.assert_converged().await;
        let log = h.provider.request_log();
        let texts: usize = log.iter().map(|request| request.texts.len()).sum();
        assert!(log.len() <= most, "{dialect:?}: {} requests", log.len());
        // Where one vector stands for all, the first request is sent twice.
        let most = if dialect.fused { 257 + 8 } else { 257 };
        assert!(texts <= most, "{dialect:?}: {texts} texts");
    }
}

pub async fn required_field(case: Case) {
    let site = Site::start().await;
    site.provider.rule(
        When::Lacks("input_type", &["passage", "query"]),
        Behaviour::Raw(400, case.bytes("answer.json")),
    );
    site.elf(&["worker", "--once"])
        .await
        .exits(78)
        .says(&["input_type", "document_fields"]);

    let fields = "document_fields = { input_type = \"passage\", truncate = \"NONE\" }\n\
                  query_fields = { input_type = \"query\" }\n[chunking]";
    site.configure("[chunking]", fields);
    let h = Harness::over(site).await;
    let from = h.provider.requests();
    h.insert("The gannets were counted.").await;
    h.drain().await;
    h.assert_converged().await;
    let (searcher, gannets) = (searcher(&h).await, Request::hybrid("gannets", 1));
    let answer = searcher.search(&gannets).await.unwrap();
    assert_eq!(answer.degraded, []);
    let log = h.provider.request_log().split_off(from);
    let asked = |text: &str| {
        let of = log.iter().find(|r| r.texts.iter().any(|t| t == text));
        of.unwrap().body.clone()
    };
    let note = asked("The gannets were counted.");
    assert_eq!(
        (&note["input_type"], &note["truncate"]),
        (&"passage".into(), &"NONE".into())
    );
    let query = asked("gannets");
    assert_eq!(query["input_type"], "query");
    assert_eq!(query.get("truncate"), None);
}
