//! What a script or a terminal reads: the shape of JSON reports, logs on stderr, and no
//! control characters from texts of others.

use serde_json::Value;

use super::{WORKED_KEYS, assert_keys};
use crate::support::embedding_server::Behaviour;
use crate::support::harness::sentences;
use crate::support::site::Site;

#[tokio::test]
async fn reports_have_the_shape_that_scripts_rely_on() {
    let site = Site::start().await;
    let text = sentences(12, "a lighthouse");
    site.write("notes/long.md", &text);
    site.write("notes/short.md", "The ferry leaves at noon.");
    site.json(&["import", "notes"]).await;

    // No worker has run yet.
    let status = site.json(&["status"]).await;
    let status_keys = [
        "outbox",
        "notes",
        "chunks",
        "embedding_version",
        "asked_changes",
        "other_versions",
        "collection",
        "sources",
        "job",
        "lock_waits",
    ];
    let collection_keys = ["alias", "name", "points", "status"];
    let outbox_keys = [
        "pending",
        "leased",
        "failed",
        "dead",
        "paused",
        "oldest_pending_secs",
    ];
    assert_keys(&status, &status_keys);
    assert_keys(&status["collection"], &collection_keys);
    assert_eq!(status["outbox"]["pending"], 2);
    assert!(status["outbox"]["oldest_pending_secs"].is_number());
    assert!(status["embedding_version"].is_null());
    assert_eq!(status["collection"]["status"], "missing");

    let worked = site.json(&["worker", "--once"]).await;
    assert_keys(&worked, &WORKED_KEYS);
    assert!(worked["seconds"].is_number());
    let chunks = worked["chunks"].as_u64().unwrap();
    assert!(chunks > 2, "{worked}");
    assert_eq!(worked["notes"], 2);
    assert_eq!(
        (&worked["embedded"], &worked["points"]),
        (&worked["chunks"], &worked["chunks"])
    );
    assert_eq!((&worked["reused"], &worked["dead"]), (&0.into(), &0.into()));

    let status = site.json(&["status"]).await;
    assert_keys(&status, &status_keys);
    assert_keys(&status["outbox"], &outbox_keys);
    assert_keys(&status["notes"], &["live", "indexed"]);
    assert_keys(&status["collection"], &collection_keys);
    for state in ["pending", "leased", "failed", "dead"] {
        assert_eq!(status["outbox"][state], 0, "{status}");
    }
    assert!(status["outbox"]["oldest_pending_secs"].is_null());
    assert_eq!(
        status["notes"],
        serde_json::json!({"live": 2, "indexed": 2})
    );
    assert_eq!(status["chunks"], chunks);
    assert_eq!(status["collection"]["alias"], "notes");
    assert_eq!(status["collection"]["name"], "notes__1");
    assert_eq!(status["collection"]["points"], chunks);
    assert!(status["embedding_version"].is_string());

    let found = site.json(&["search", "The ferry leaves at noon."]).await;
    assert_keys(&found, &["items", "nothing_near", "degraded"]);
    let items = found["items"].as_array().unwrap();
    assert!(!items.is_empty());
    let item_keys = [
        "note_id",
        "key",
        "title",
        "project_id",
        "agent_id",
        "scope",
        "type",
        "updated_at",
        "source_ref",
        "chunk_id",
        "chunk_index",
        "start_offset",
        "end_offset",
        "relevance",
        "score",
        "dense",
        "bm25",
        "passage",
        "text",
        "context",
    ];
    items.iter().for_each(|item| assert_keys(item, &item_keys));
    assert_eq!(items[0]["text"], "The ferry leaves at noon.");
    let scores: Vec<f64> = items.iter().map(|i| i["score"].as_f64().unwrap()).collect();
    assert!(scores.is_sorted_by(|a, b| a >= b), "{scores:?}");
    for item in items.iter().filter(|item| item["text"] != items[0]["text"]) {
        let at = |name: &str| item[name].as_u64().unwrap() as usize;
        assert_eq!(
            text[at("start_offset")..at("end_offset")],
            *item["text"].as_str().unwrap()
        );
    }
    let one = site.json(&["search", "lighthouse", "-n", "1"]).await;
    assert_eq!(one["items"].as_array().unwrap().len(), 1);
    let by_word = site.json(&["search", "lighthouse", "--by", "bm25"]).await;
    for item in by_word["items"].as_array().unwrap() {
        assert!(
            item["text"].as_str().unwrap().contains("lighthouse"),
            "{item}"
        );
        assert!(
            item["dense"].is_null() && item["bm25"].as_f64().unwrap() > 0.0,
            "{item}"
        );
    }
    // The rate is that of the copy, and the seconds are those of everything.
    let rebuilt = site.elf(&["rebuild"]).await.exits(0).stdout;
    assert!(
        rebuilt.contains(" s, graphs and swap included (copied at "),
        "{rebuilt}"
    );
    let nobody = site
        .json(&["search", "lighthouse", "--tenant", "nobody"])
        .await;
    assert_eq!(
        nobody,
        serde_json::json!({"items": [], "nothing_near": true, "degraded": []})
    );
}

#[tokio::test]
async fn chunk_shows_the_bytes_of_the_text() {
    let site = Site::empty().await;
    let text = "Größe: 👩‍👩‍👧‍👦 and 日本語。\n\n".repeat(30) + &sentences(9, "the sea");
    site.write("text.md", &text);
    let stdin = site
        .elf_reading(&["chunk", "-", "--json"], text.as_bytes())
        .await;
    let shown = site.json(&["chunk", "text.md"]).await;
    assert_eq!(stdin.exits(0).json(), shown);
    assert_eq!(shown["left_out"], serde_json::json!([]));
    let chunks = shown["chunks"].as_array().unwrap();
    assert!(chunks.len() > 3);
    for (i, chunk) in chunks.iter().enumerate() {
        assert_keys(chunk, &["index", "start", "end", "tokens", "text"]);
        assert_eq!(chunk["index"], i);
        let at = |name: &str| chunk[name].as_u64().unwrap() as usize;
        assert_eq!(chunk["text"], text[at("start")..at("end")]);
        assert!((1..=32).contains(&at("tokens")), "{chunk}");
    }
    site.write("empty.md", "");
    assert_eq!(
        site.json(&["chunk", "empty.md"]).await,
        serde_json::json!({"strategy": "paragraph", "is_chosen": true, "chunks": [], "left_out": []})
    );
    site.write("latin1.md", b"Caf\xe9");
    site.elf(&["chunk", "latin1.md"])
        .await
        .exits(1)
        .says(&["latin1.md", "UTF-8"]);
    site.elf(&["chunk", "nowhere.md"])
        .await
        .exits(1)
        .says(&["nowhere.md"]);
}

#[tokio::test]
async fn logs_go_to_stderr_and_are_plain_text_there() {
    let site = Site::start().await;
    site.write("notes/a.md", "A note.");
    site.json(&["import", "notes"]).await;
    // The tests' configuration logs at debug level.
    let done = site.elf(&["worker", "--once", "--json"]).await.exits(0);
    done.json();
    assert!(done.stderr.contains("DEBUG"), "{}", done.stderr);
    assert!(
        !done.stderr.contains('\x1b'),
        "colours where no terminal is: {}",
        done.stderr
    );

    site.configure("log_level = \"debug\"", "log_json = true");
    let done = site.elf(&["worker", "--once", "--json"]).await.exits(0);
    done.json();
    for line in done.stderr.lines() {
        serde_json::from_str::<Value>(line).unwrap_or_else(|_| panic!("not JSON: {line}"));
    }
}

/// Texts, keys, file names and servers' answers come from others and are not trusted.
#[tokio::test]
async fn nothing_that_others_wrote_steers_the_terminal() {
    let site = Site::start().await;
    let steer = "\u{1b}]0;owned\u{7}\u{1b}[2J\u{9b}31m";
    let line = serde_json::json!({ "key": format!("good{steer}"), "text": format!("A good note. {steer}") });
    site.elf_reading(&["import", "-"], line.to_string().as_bytes())
        .await
        .exits(0);
    site.elf(&["worker", "--once"]).await.exits(0);
    let refusal = serde_json::json!({ "error": { "message": format!("no {steer}") } }).to_string();
    let poison = Behaviour::Answer(400, "content-type", "application/json".into(), refusal);
    site.provider.poison("poison", poison);
    site.note(&format!("poison {steer}")).await;
    let bad_lines = format!("{{\"{steer}\": 1}}\n");
    let mut said = vec![
        site.elf(&["worker", "--once"]).await,
        site.elf(&["worker", "--once", "--json"]).await,
        site.elf_reading(&["import", "-"], bad_lines.as_bytes())
            .await,
        site.elf(&["search", "good"]).await,
        site.elf(&["search", "good", "--json"]).await,
        site.elf(&["dead", "list"]).await,
        site.elf(&["dead", "list", "--json"]).await,
        site.elf(&["import", &format!("no-such-file{steer}")]).await,
        site.elf(&["-c", &format!("no-such{steer}.toml"), "status"])
            .await,
    ];
    let dead = site.json(&["dead", "list"]).await;
    let id = dead["items"][0]["note_id"].as_str().unwrap().to_owned();
    said.push(site.elf(&["dead", "show", &id]).await);
    said.push(site.elf(&["dead", "retry", &id]).await);
    for done in said {
        for stream in [&done.stdout, &done.stderr] {
            let obeyed = |c: char| c.is_control() && c != '\n' && c != '\t';
            assert!(!stream.contains(obeyed), "{stream:?}");
        }
    }
    // JSON keeps the text unchanged.
    let found = site.json(&["search", "good"]).await;
    assert_eq!(found["items"][0]["text"], format!("A good note. {steer}"));
}
