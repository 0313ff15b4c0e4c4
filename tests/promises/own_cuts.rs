//! Chunks that end where the application of a note says: `source_ref.cuts`.

use elf_chunk::Chunk;
use reqwest::Method;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::api::Served;
use crate::support::harness::{Harness, sentences};
use crate::support::site::Site;

/// A transcript whose second speaker takes more than one chunk, and where each begins.
fn transcript() -> (String, Vec<usize>) {
    let long = sentences(12, "the tide");
    let parts = [
        "Ann: is it high water?\n",
        "Bob: ",
        &long,
        "\nAnn: thank you.\n",
    ];
    let second = parts[0].len();
    let third = second + parts[1].len() + long.len() + 1;
    (parts.concat(), vec![second, third])
}

async fn insert(h: &Harness, text: &str, source: Value) -> Uuid {
    sqlx::query_scalar(
        "insert into memory_notes (tenant_id, project_id, agent_id, scope, type, text, source_ref)
         values ('t', 'p', 'a', 's', 'n', $1, $2) returning note_id",
    )
    .bind(text)
    .bind(source)
    .fetch_one(&h.pool)
    .await
    .unwrap()
}

/// Sets fields of the source, and returns how many outbox rows that gave.
async fn change(h: &Harness, fields: Value) -> i64 {
    sqlx::query("update memory_notes set source_ref = source_ref || $1")
        .bind(fields)
        .execute(&h.pool)
        .await
        .unwrap();
    h.count("indexing_outbox").await
}

async fn spans(h: &Harness) -> Vec<(usize, usize)> {
    let spans: Vec<(i32, i32)> = sqlx::query_as(
        "select start_offset, end_offset from memory_note_chunks order by chunk_index",
    )
    .fetch_all(&h.pool)
    .await
    .unwrap();
    let span = |(start, end): (i32, i32)| (start as usize, end as usize);
    spans.into_iter().map(span).collect()
}

/// The chunks of a text by the strategy.
fn usual(h: &Harness, text: &str) -> Vec<(usize, usize)> {
    let chunks = crate::support::harness::chunks(&h.pipeline.chunker, text);
    chunks
        .iter()
        .map(|Chunk { start, end, .. }| (*start, *end))
        .collect()
}

#[tokio::test]
async fn no_chunk_crosses_a_cut_and_a_long_piece_is_cut_further() {
    let h = Harness::start().await;
    let (text, cuts) = transcript();
    insert(&h, &text, json!({"cuts": cuts, "file": "a.txt"})).await;
    h.drain().await;
    let spans = spans(&h).await;
    for cut in &cuts {
        assert!(
            spans.iter().all(|(start, end)| end <= cut || start >= cut),
            "{spans:?}"
        );
        assert!(spans.iter().any(|(start, _)| start == cut), "{spans:?}");
    }
    assert!(spans.len() > 4, "{spans:?}");
    // Chunks of one piece overlap, as those of a note do.
    assert!(
        spans.windows(2).any(|pair| pair[1].0 < pair[0].1),
        "{spans:?}"
    );
    let requests = h.provider.requests();
    h.assert_exact().await;
    assert_eq!(h.provider.requests(), requests);
}

#[tokio::test]
async fn other_cuts_embed_only_the_chunks_whose_text_is_new() {
    let h = Harness::start().await;
    let text = "one two\nthree four\nfive six\n";
    insert(&h, text, json!({"cuts": [8, 19]})).await;
    h.drain().await;
    assert_eq!(spans(&h).await, [(0, 7), (8, 18), (19, 27)]);
    let seen = h.provider.texts_seen().len();
    // What else is in the source costs no work.
    assert_eq!(change(&h, json!({"hits": 7, "cuts": [8, 19]})).await, 0);
    assert_eq!(change(&h, json!({"cuts": [8]})).await, 1);
    h.drain().await;
    assert_eq!(spans(&h).await, [(0, 7), (8, 27)]);
    assert_eq!(h.provider.texts_seen()[seen..], ["three four\nfive six"]);
    h.assert_exact().await;
    // Cuts at the ends are none, and so are no cuts: the note is one chunk.
    for (round, cuts) in [json!([0, 28]), json!([]), Value::Null]
        .into_iter()
        .enumerate()
    {
        assert_eq!(change(&h, json!({ "cuts": cuts })).await, 1);
        h.drain().await;
        assert_eq!(spans(&h).await, [(0, 27)]);
        assert_eq!(h.provider.texts_seen().len(), seen + 2, "{round}");
        h.assert_exact().await;
    }
    assert_eq!(change(&h, json!({"cuts": [8, 19]})).await, 1);
    h.drain().await;
    assert_eq!(spans(&h).await.len(), 3);
    h.assert_exact().await;
}

#[tokio::test]
async fn pieces_of_whitespace_have_no_chunk_and_thousands_of_cuts_are_work() {
    let h = Harness::start().await;
    let text = "tide\n \n".repeat(3_000);
    let cuts: Vec<usize> = (1..text.len())
        .filter(|at| [0, 5].contains(&(at % 7)))
        .collect();
    let note = insert(&h, &text, json!({ "cuts": cuts })).await;
    h.drain().await;
    assert_eq!(spans(&h).await.len(), 3_000);
    assert_eq!(h.provider.texts_seen(), ["tide"]);
    h.assert_exact().await;
    h.edit(note, "tide").await;
    h.drain().await;
    // The cuts are behind its end now.
    assert_eq!(spans(&h).await, [(0, 4)]);
    h.assert_exact().await;
}

#[tokio::test]
async fn a_note_with_wrong_cuts_is_split_by_its_strategy_and_named() {
    let h = Harness::start().await;
    let text = format!("é {}", sentences(8, "the moon"));
    let usual = usual(&h, &text);
    let note = insert(&h, &text, json!({"cuts": [1]})).await;
    let many: Vec<usize> = (0..200_000).collect();
    let site = h.into_site().await;
    let mut db = site.connect().await;
    for (cuts, said) in [
        (
            json!([1]),
            "source_ref.cuts: cut 0 at byte 1 lies inside a character",
        ),
        (
            json!([9, 4]),
            "cut 1 at byte 4 does not lie behind the cut before it",
        ),
        (
            json!([9, 9000]),
            "cut 1 at byte 9000 lies behind the end of the text",
        ),
        (json!([9, "x"]), "cut 1 is no byte offset"),
        (
            json!("9"),
            "source_ref.cuts: it is no array of byte offsets",
        ),
        (
            json!({"at": 9}),
            "source_ref.cuts: it is no array of byte offsets",
        ),
        (json!(many), "source_ref.cuts: there are more than 100000"),
    ] {
        let update = "update memory_notes set source_ref = $1 where source_ref is distinct from $1";
        let source = json!({ "cuts": cuts });
        sqlx::query(update)
            .bind(source)
            .execute(&mut db)
            .await
            .unwrap();
        let worked = site.elf(&["worker", "--once"]).await.exits(0);
        worked.says(&[&note.to_string(), said]);
        let spans: Vec<(i32, i32)> = sqlx::query_as(
            "select start_offset, end_offset from memory_note_chunks order by chunk_index",
        )
        .fetch_all(&mut db)
        .await
        .unwrap();
        let spans: Vec<_> = spans
            .iter()
            .map(|(a, b)| (*a as usize, *b as usize))
            .collect();
        assert_eq!(spans, usual, "{said}");
    }
    assert_eq!(site.json(&["status"]).await["outbox"]["dead"], 0);
}

#[tokio::test]
async fn the_api_refuses_wrong_cuts_and_a_new_text_drops_the_old_ones() {
    let served = Served::start().await;
    let secret = served.key(&["--tenant", "t", "--write"]).await;
    let post = async |cuts: Value| {
        let note =
            json!({"text": "héllo wörld", "key": "k", "source_ref": {"cuts": cuts, "page": 3}});
        let body = Some(json!({"notes": [note]}));
        served
            .ask(Method::POST, "/v2/notes?wait=indexed", &secret, body)
            .await
    };
    let wrong = post(json!([7, 2])).await;
    wrong.is_error(422, "invalid");
    assert_eq!(
        wrong.body["error"]["details"],
        json!({"field": "source_ref", "note": 0})
    );
    let said = wrong.body["error"]["message"].as_str().unwrap();
    assert!(
        said.contains("source_ref.cuts: cut 1 at byte 2 lies inside a character"),
        "{said}"
    );
    let added = post(json!([7])).await;
    assert_eq!(added.status, 201, "{added:?}");
    let path = format!("/v2/notes/{}", added.body["note_ids"][0].as_str().unwrap());
    let chunks = async || {
        let path = format!("{path}/chunks");
        let shown = served.ask(Method::GET, &path, &secret, None).await;
        let chunks = shown.body["chunks"].as_array().unwrap().clone();
        chunks
            .iter()
            .map(|it| it["text"].clone())
            .collect::<Vec<Value>>()
    };
    assert_eq!(chunks().await, ["héllo", "wörld"]);
    let patch = async |body: Value| {
        let path = format!("{path}?wait=indexed");
        let changed = served.ask(Method::PATCH, &path, &secret, Some(body)).await;
        assert_eq!(changed.status, 200, "{changed:?}");
    };
    patch(json!({"text": "héllo wörld", "importance": 0.75})).await;
    assert_eq!(chunks().await, ["héllo", "wörld"]);
    patch(json!({"text": "hello world"})).await;
    assert_eq!(chunks().await, ["hello world"]);
    let source = async || -> Value {
        sqlx::query_scalar("select source_ref from memory_notes")
            .fetch_one(&mut served.site.connect().await)
            .await
            .unwrap()
    };
    assert_eq!(source().await, json!({"page": 3}));

    let cut = json!({"cuts": [3], "page": 4});
    patch(json!({"text": "one two", "source_ref": cut})).await;
    assert_eq!(chunks().await, ["one", "two"]);
    assert_eq!(source().await, cut);
    for (wrong, said) in [
        (
            json!({"source_ref": {"cuts": [3]}}),
            "send the text with them",
        ),
        (
            json!({"text": "one", "source_ref": {"cuts": [4]}}),
            "cut 0 at byte 4",
        ),
        (json!({"source_ref": [5]}), "source_ref must be an object"),
        (json!({"source_ref": {"a": "\u{0}"}}), "NUL"),
    ] {
        let refused = served.ask(Method::PATCH, &path, &secret, Some(wrong)).await;
        refused.is_error(422, "invalid");
        let message = refused.body["error"]["message"].as_str().unwrap();
        assert!(message.contains(said), "{message}");
    }
    patch(json!({"source_ref": {"page": 5}})).await;
    assert_eq!(chunks().await, ["one two"]);
    assert_eq!(source().await, json!({"page": 5}));
}

#[tokio::test]
async fn an_import_refuses_wrong_cuts_and_a_new_text_drops_the_old_ones() {
    let site = Site::start().await;
    let import = async |line: Value| {
        let args = ["import", "-", "--json"];
        site.elf_reading(&args, line.to_string().as_bytes()).await
    };
    let line = |cuts: Value| json!({"key": "k", "text": "one two", "source_ref": {"cuts": cuts}});
    let wrong = import(line(json!([3, 9]))).await.exits(1);
    wrong.says(&["stdin:1: source_ref.cuts: cut 1 at byte 9 lies behind the end of the text"]);
    import(line(json!([3]))).await.exits(0);
    let cuts = async || {
        let cuts: Option<Value> =
            sqlx::query_scalar("select source_ref -> 'cuts' from memory_notes")
                .fetch_one(&mut site.connect().await)
                .await
                .unwrap();
        cuts
    };
    assert_eq!(cuts().await, Some(json!([3])));
    import(json!({"key": "k", "text": "one two", "importance": 0.75}))
        .await
        .exits(0);
    assert_eq!(cuts().await, Some(json!([3])));
    import(json!({"key": "k", "text": "one two three"}))
        .await
        .exits(0);
    assert_eq!(cuts().await, None);
}
