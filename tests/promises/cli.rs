//! The program as a person or a script meets it: arguments, exit codes, streams.

use std::collections::BTreeSet;

use serde_json::Value;
use sqlx::Connection;
use uuid::Uuid;

use crate::support::embedding_server::Behaviour;
use crate::support::eventually;
use crate::support::harness::sentences;
use crate::support::site::{Done, Site, elf, run};

/// Every command and subcommand.
const COMMANDS: &[&[&str]] = &[
    &[],
    &["migrate"],
    &["worker"],
    &["status"],
    &["dead"],
    &["dead", "list"],
    &["dead", "show"],
    &["dead", "retry"],
    &["dead", "purge"],
    &["enqueue"],
    &["import"],
    &["chunk"],
    &["config"],
    &["config", "check"],
    &["config", "show"],
    &["reindex"],
    &["reindex", "rollback"],
    &["reindex", "drop"],
    &["search"],
    &["demo"],
    &["completions"],
];

/// Runs `elf` in an empty folder, with an `elf.toml` if one is given.
async fn elf_with(toml: Option<&str>, args: &[&str], env: &[(&str, &str)]) -> Done {
    let folder = tempfile::tempdir().unwrap();
    if let Some(toml) = toml {
        std::fs::write(folder.path().join("elf.toml"), toml).unwrap();
    }
    let mut command = elf(folder.path());
    command.args(args).envs(env.iter().copied());
    run(command, b"").await
}

#[track_caller]
fn assert_keys(value: &Value, expected: &[&str]) {
    let object = value
        .as_object()
        .unwrap_or_else(|| panic!("no object: {value}"));
    let found: BTreeSet<&str> = object.keys().map(String::as_str).collect();
    assert_eq!(found, expected.iter().copied().collect(), "{value}");
}

/// What `elf worker --once --json` reports.
const WORKED_KEYS: [&str; 11] = [
    "notes",
    "bytes",
    "chunks",
    "embedded",
    "tokens",
    "reused",
    "tokens_saved",
    "points",
    "failed",
    "dead",
    "seconds",
];

#[tokio::test]
async fn help_goes_to_stdout_and_succeeds() {
    for command in COMMANDS {
        let mut args = command.to_vec();
        args.push("--help");
        let done = elf_with(None, &args, &[]).await.exits(0);
        let usage = format!("Usage: {}", [&["elf"], *command].concat().join(" "));
        assert!(done.stdout.contains(&usage), "{done:?}");
        assert_eq!(done.stderr, "");
    }
    let done = elf_with(None, &["--version"], &[]).await.exits(0);
    assert!(done.stdout.starts_with("elf "), "{done:?}");
}

#[tokio::test]
async fn wrong_usage_exits_with_2_and_leaves_stdout_empty() {
    let id = "6f1c2a34-8d5e-4c1b-9a57-3e0d2b7c4f10";
    let wrong: &[&[&str]] = &[
        &[],
        &["--frobnicate"],
        &["frobnicate"],
        &["worker", "--twice"],
        &["dead"],
        &["dead", "show"],
        &["dead", "retry"],
        &["dead", "retry", id, "--all"],
        &["dead", "purge"],
        &["dead", "purge", "not-an-id"],
        &["enqueue"],
        &["enqueue", "--all", "--note", id],
        &["enqueue", "--note", "not-an-id"],
        &["import"],
        &["chunk"],
        &["config"],
        &["search"],
        &["search", "word", "--limit", "0"],
        &["migrate", "now"],
    ];
    for args in wrong {
        let done = elf_with(None, args, &[]).await.exits(2);
        assert_eq!(done.stdout, "", "{args:?}");
        assert!(!done.stderr.is_empty(), "{args:?}");
    }
}

#[tokio::test]
async fn a_missing_configuration_says_what_to_do() {
    for args in [
        &["config", "check"][..],
        &["migrate"],
        &["worker"],
        &["worker", "--once"],
        &["status"],
        &["search", "word"],
        &["import", "."],
    ] {
        let done = elf_with(None, args, &[]).await;
        let done = done
            .exits(78)
            .says(&["elf.toml", "-c FILE", "ELF_CONFIG", "elf.toml.example"]);
        assert_eq!(done.stdout, "");
    }
    let done = elf_with(None, &["-c", "elsewhere.toml", "status"], &[]).await;
    done.exits(78).says(&["elsewhere.toml"]);
    let done = elf_with(None, &["status"], &[("ELF_CONFIG", "in-the-variable.toml")]).await;
    done.exits(78).says(&["in-the-variable.toml"]);
}

#[tokio::test]
async fn a_wrong_configuration_is_told_all_at_once_with_its_lines() {
    let toml = "[storage.postgres]\ndsn = \"mysql://elf:hunter2@db/elf\"\n\
                [storage.qdrant]\nurl = \"nowhere\"\n\
                [chunking]\nmax_tokens = 10\noverlap_tokns = 4\noverlap_tokens = 10\n";
    for args in [
        &["config", "check"][..],
        &["worker", "--once"],
        &["migrate"],
    ] {
        let done = elf_with(Some(toml), args, &[]).await.exits(78).says(&[
            "elf.toml:2: storage.postgres.dsn",
            "elf.toml:4: storage.qdrant.url",
            "elf.toml:7: chunking.overlap_tokns",
            "did you mean overlap_tokens?",
            "elf.toml:8: chunking.overlap_tokens",
        ]);
        assert!(!done.stderr.contains("hunter2"), "{}", done.stderr);
        assert_eq!(done.stdout, "");
    }
    let done = elf_with(Some(toml), &["config", "check", "--json"], &[]).await;
    let report = done.exits(78).json();
    assert_eq!(report["ok"], false);
    let problems = report["problems"].as_array().unwrap();
    assert!(
        problems[0].as_str().unwrap().starts_with("elf.toml:2: "),
        "{problems:?}"
    );
    let done = elf_with(Some("[storage"), &["config", "check"], &[]).await;
    done.exits(78).says(&["elf.toml:1:"]);
}

#[tokio::test]
async fn secrets_are_read_from_where_they_are_and_never_printed() {
    let toml = "[storage.postgres]\ndsn = \"env:ELF_TEST_DSN\"\n\
                [storage.qdrant]\nurl = \"http://localhost:6334\"\napi_key = \"file:key.txt\"\n\
                [providers.embedding]\napi_key = \"plain-hunter4\"\nheaders = { X-Team = \"team-hunter5\" }\n";
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("elf.toml"), toml).unwrap();
    std::fs::write(folder.path().join("key.txt"), "file-hunter3\n").unwrap();
    for args in [
        &["config", "check"][..],
        &["config", "check", "--json"],
        &["config", "show"],
        &["config", "show", "--json"],
        &["status"],
    ] {
        let mut command = elf(folder.path());
        command.args(args);
        // Port 1 refuses at once.
        command.env("ELF_TEST_DSN", "postgres://elf:hunter2@127.0.0.1:1/elf");
        let done = run(command, b"").await;
        let expected = if args[0] == "status" { 1 } else { 0 };
        let done = done.exits(expected);
        for stream in [&done.stdout, &done.stderr] {
            assert!(!stream.contains("hunter"), "{done:?}");
        }
        if args.contains(&"--json") {
            done.json();
        }
    }
    let mut command = elf(folder.path());
    let done = {
        command.args(["config", "check"]);
        run(command, b"").await
    };
    done.exits(78)
        .says(&["elf.toml:2: storage.postgres.dsn", "ELF_TEST_DSN"]);
}

/// The output can be used as a configuration.
#[tokio::test]
async fn config_show_prints_a_whole_file() {
    let toml = "[storage.postgres]\ndsn = \"postgres://localhost/elf\"\n[storage.qdrant]\nurl = \"embedded:index\"\n";
    let shown = elf_with(Some(toml), &["config", "show"], &[])
        .await
        .exits(0);
    let with_dsn = shown.stdout.replace("***", "postgres://localhost/elf");
    let again = elf_with(Some(&with_dsn), &["config", "show"], &[]).await;
    assert_eq!(again.exits(0).stdout, shown.stdout);
}

#[tokio::test]
async fn migrate_can_run_again() {
    let site = Site::empty().await;
    let first = site.json(&["migrate"]).await;
    assert!(first["applied"].as_u64().unwrap() > 0, "{first}");
    let again = site.json(&["migrate"]).await;
    assert_eq!(again["applied"], 0);
}

#[tokio::test]
async fn migrations_that_start_at_once_all_succeed() {
    for _ in 0..3 {
        let site = Site::empty().await;
        let all = [(); 4].map(|()| site.elf(&["migrate", "--json"]));
        for done in futures::future::join_all(all).await {
            done.exits(0).json();
        }
        site.json(&["status"]).await;
    }
}

#[tokio::test]
async fn a_folder_is_imported_and_only_what_changed_the_next_time() {
    let site = Site::start().await;
    site.write("notes/a.md", "The first note.");
    site.write("notes/deeper/b.txt", "The second note.");
    site.write("notes/c.pdf", "No note.");
    site.write("notes/.hidden.md", "No note either.");
    let counts = |read: u64, changed: u64| serde_json::json!({"read": read, "changed": changed, "skipped": 0});
    assert_eq!(site.json(&["import", "notes"]).await, counts(2, 2));
    assert_eq!(site.json(&["import", "notes"]).await, counts(2, 0));
    site.write("notes/a.md", "The first note, edited.");
    assert_eq!(site.json(&["import", "notes"]).await, counts(2, 1));
    // A file's key is its path below the folder, so this is the same note.
    assert_eq!(site.json(&["import", "notes/a.md"]).await, counts(1, 0));

    let mut db = site.connect().await;
    let notes: Vec<(String, String, String, String)> =
        sqlx::query_as("select key, text, tenant_id, agent_id from memory_notes order by key")
            .fetch_all(&mut db)
            .await
            .unwrap();
    let of = |key: &str, text: &str| (key.into(), text.into(), "default".into(), "import".into());
    assert_eq!(
        notes,
        [
            of("a.md", "The first note, edited."),
            of("deeper/b.txt", "The second note.")
        ]
    );
    // A link may lead out of the folder, and a byte order mark is no part of the text.
    std::os::unix::fs::symlink("/etc/hostname", site.path("notes/link.md")).unwrap();
    site.write("notes/marked.md", "\u{feff}Marked.");
    let done = site.elf(&["import", "notes", "--json"]).await.exits(0);
    assert_eq!(done.json(), counts(3, 1));
    let done = done.says(&["link.md: a symbolic link"]);
    let marked: String =
        sqlx::query_scalar("select text from memory_notes where key = 'marked.md'")
            .fetch_one(&mut db)
            .await
            .unwrap();
    assert_eq!(marked, "Marked.", "{done:?}");

    site.elf(&["import", "nowhere"])
        .await
        .exits(1)
        .says(&["nowhere"]);
    site.write("empty/x.pdf", "");
    site.elf(&["import", "empty"])
        .await
        .exits(1)
        .says(&["empty"]);
}

#[tokio::test]
async fn jsonl_is_imported_from_a_file_and_from_stdin() {
    let site = Site::start().await;
    let lines = "{\"key\": \"one\", \"text\": \"First.\"}\n\n\
                 {\"key\": \"two\", \"text\": \"Second.\", \"tenant_id\": \"acme\", \"scope\": \"private\", \
                 \"type\": \"fact\", \"importance\": 0.75, \"expires_at\": \"2999-01-01T00:00:00Z\", \
                 \"source_ref\": {\"page\": 7}}\n";
    site.write("notes.jsonl", lines);
    let all = serde_json::json!({"read": 2, "changed": 2, "skipped": 0});
    let none = serde_json::json!({"read": 2, "changed": 0, "skipped": 0});
    assert_eq!(site.json(&["import", "notes.jsonl"]).await, all);
    let piped = site
        .elf_reading(&["import", "-", "--json"], lines.as_bytes())
        .await;
    assert_eq!(piped.exits(0).json(), none);

    let mut db = site.connect().await;
    let (tenant, scope, kind, importance, page): (String, String, String, f32, i32) = sqlx::query_as(
        "select tenant_id, scope, type, importance, (source_ref->>'page')::int from memory_notes where key = 'two'",
    )
    .fetch_one(&mut db)
    .await
    .unwrap();
    assert_eq!(
        (&*tenant, &*scope, &*kind, importance, page),
        ("acme", "private", "fact", 0.75, 7)
    );
}

#[tokio::test]
async fn what_cannot_be_imported_is_named_and_the_rest_is_imported() {
    let site = Site::start().await;
    let bad: &[&[u8]] = &[
        b"{\"key\": \"cut short\", \"text\": ",
        b"{\"key\": \"no text\"}",
        b"{\"text\": \"neither key nor id\"}",
        b"{\"key\": \"typo\", \"text\": \"x\", \"tenant\": \"acme\"}",
        b"{\"key\": \"not UTF-8\", \"text\": \"\xff\xfe\"}",
        b"{\"key\": \"NUL\", \"text\": \"a\\u0000b\"}",
        b"{\"key\": \"NUL\\u0000\", \"text\": \"in the key\"}",
        b"{\"key\": \"NUL\", \"text\": \"in the scope\", \"scope\": \"\\u0000\"}",
        b"{\"key\": \"NUL\", \"text\": \"in the source\", \"source_ref\": {\"a\": [\"\\u0000\"]}}",
        b"[1, 2]",
    ];
    for (i, line) in bad.iter().enumerate() {
        let before = format!("{{\"key\": \"{i} before\", \"text\": \"Before.\"}}\n");
        let after = format!("\n{{\"key\": \"{i} after\", \"text\": \"After.\"}}");
        let input = [before.as_bytes(), line, after.as_bytes()].concat();
        let done = site.elf_reading(&["import", "-", "--json"], &input).await;
        let done = done.exits(1).says(&["stdin:2"]);
        let expected = serde_json::json!({"read": 2, "changed": 2, "skipped": 1});
        assert_eq!(done.json(), expected, "{:?}", String::from_utf8_lossy(line));
    }
    site.write("LICENSE", "License\nno JSON\n");
    let done = site.elf(&["import", "LICENSE"]).await.exits(1);
    done.says(&["LICENSE:1: column"]);
    site.write("notes/good.md", "A good note.");
    site.write("notes/latin1.md", b"Caf\xe9");
    site.write("notes/nul.txt", "a\0b");
    let done = site.elf(&["import", "notes", "--json"]).await;
    let done = done.exits(1).says(&["latin1.md", "nul.txt"]);
    assert_eq!(
        done.json(),
        serde_json::json!({"read": 1, "changed": 1, "skipped": 2})
    );
    let in_words = site.elf(&["import", "notes"]).await.exits(1);
    assert!(
        in_words.stdout.contains("1 notes read, 0 new"),
        "{in_words:?}"
    );
}

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
        "other_versions",
        "collection",
        "job",
    ];
    let collection_keys = ["alias", "name", "points", "status"];
    let outbox_keys = ["pending", "leased", "failed", "dead", "oldest_pending_secs"];
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
    assert_keys(&found, &["items"]);
    let items = found["items"].as_array().unwrap();
    assert!(!items.is_empty());
    let item_keys = [
        "note_id",
        "chunk_id",
        "chunk_index",
        "start_offset",
        "end_offset",
        "score",
        "text",
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
    let nobody = site
        .json(&["search", "lighthouse", "--tenant", "nobody"])
        .await;
    assert_eq!(nobody, serde_json::json!({"items": []}));
}

#[tokio::test]
async fn chunk_shows_the_bytes_of_the_text() {
    let site = Site::empty().await;
    let text = "Größe: 👩‍👩‍👧‍👦 and 日本語。\n\n".repeat(30) + &sentences(9, "the sea");
    site.write("text.md", &text);
    let stdin = site
        .elf_reading(&["chunk", "-", "--json"], text.as_bytes())
        .await;
    let chunks = site.json(&["chunk", "text.md"]).await;
    assert_eq!(stdin.exits(0).json(), chunks);
    let chunks = chunks.as_array().unwrap();
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
        serde_json::json!([])
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
async fn notes_are_enqueued_by_what_they_are() {
    let site = Site::start().await;
    let lines = [("a", "acme", "team"), ("b", "acme", "private"), ("c", "other", "team")]
        .map(|(key, tenant, scope)| {
            format!("{{\"key\":\"{key}\",\"text\":\"{key}\",\"tenant_id\":\"{tenant}\",\"scope\":\"{scope}\"}}\n")
        })
        .concat();
    site.elf_reading(&["import", "-"], lines.as_bytes())
        .await
        .exits(0);
    let mut db = site.connect().await;
    let ids: Vec<Uuid> = sqlx::query_scalar("select note_id from memory_notes order by key")
        .fetch_all(&mut db)
        .await
        .unwrap();
    let (a, b) = (ids[0].to_string(), ids[1].to_string());
    let cases: &[(&[&str], &str)] = &[
        (&["--all"], "abc"),
        (&["--note", &a], "a"),
        (&["--note", &a, "--note", &b], "ab"),
        (&["--where-tenant", "acme"], "ab"),
        (&["--where-scope", "team"], "ac"),
        (&["--where-tenant", "acme", "--where-scope", "team"], "a"),
        (&["--where-project", "default"], "abc"),
        (&["--where-agent", "nobody"], ""),
        (&["--where-type", "note", "--note", &b], "b"),
    ];
    for (which, expected) in cases {
        sqlx::query("delete from indexing_outbox")
            .execute(&mut db)
            .await
            .unwrap();
        let report = site.json(&[&["enqueue"], *which].concat()).await;
        assert_eq!(
            report,
            serde_json::json!({ "enqueued": expected.len() }),
            "{which:?}"
        );
        let keys: Option<String> = sqlx::query_scalar(
            "select string_agg(key, '' order by key) from indexing_outbox join memory_notes using (note_id)",
        )
        .fetch_one(&mut db)
        .await
        .unwrap();
        assert_eq!(keys.unwrap_or_default(), *expected, "{which:?}");
    }
}

#[tokio::test]
async fn dead_letters_are_listed_shown_retried_and_purged() {
    let site = Site::start().await;
    site.provider.poison("poison", Behaviour::Status(400));
    let lines = "{\"key\": \"bad\", \"text\": \"This is poison.\"}\n{\"key\": \"good\", \"text\": \"This is not.\"}\n";
    site.elf_reading(&["import", "-"], lines.as_bytes())
        .await
        .exits(0);
    assert_eq!(
        site.json(&["dead", "list"]).await,
        serde_json::json!({"items": []})
    );
    let dead = async || {
        let worked = site.json(&["worker", "--once"]).await;
        assert_keys(&worked, &WORKED_KEYS);
        site.json(&["status"]).await["outbox"]["dead"] == 1
    };
    eventually(dead).await;

    let listed = site.json(&["dead", "list"]).await;
    assert_keys(&listed, &["items"]);
    let letter = &listed["items"][0];
    let keys = [
        "outbox_id",
        "note_id",
        "op",
        "embedding_version",
        "attempts",
        "reason",
        "last_error",
        "created_at",
        "died_at",
        "text_preview",
        "text_bytes",
    ];
    assert_keys(letter, &keys);
    assert_eq!(letter["reason"], "provider");
    assert_eq!(letter["attempts"], 3);
    assert_eq!(letter["op"], "UPSERT");
    let (outbox_id, note_id) = (
        letter["outbox_id"].as_str().unwrap(),
        letter["note_id"].as_str().unwrap(),
    );

    for id in [outbox_id, note_id] {
        let shown = site.json(&["dead", "show", id]).await;
        assert_eq!(shown["items"][0]["text_preview"], "This is poison.");
        assert_eq!(shown["items"][0]["text_bytes"], 15);
        assert_eq!(shown["items"][0]["last_error"], letter["last_error"]);
    }
    let stranger = Uuid::new_v4().to_string();
    site.elf(&["dead", "show", &stranger])
        .await
        .exits(1)
        .says(&[&stranger]);
    let in_words = site.elf(&["dead", "list"]).await.exits(0);
    assert!(in_words.stdout.contains(note_id), "{in_words:?}");

    assert_eq!(
        site.json(&["dead", "retry", &stranger]).await,
        serde_json::json!({"retried": 0})
    );
    assert_eq!(
        site.json(&["dead", "retry", note_id]).await,
        serde_json::json!({"retried": 1})
    );
    assert_eq!(site.json(&["status"]).await["outbox"]["pending"], 1);
    eventually(dead).await;
    assert_eq!(
        site.json(&["dead", "purge", outbox_id]).await,
        serde_json::json!({"purged": 1})
    );
    assert_eq!(
        site.json(&["dead", "list"]).await,
        serde_json::json!({"items": []})
    );
    assert_eq!(site.json(&["status"]).await["outbox"]["pending"], 0);

    // The provider accepts the text now: a retry is enough.
    site.json(&["enqueue", "--note", note_id]).await;
    eventually(dead).await;
    site.provider.heal();
    assert_eq!(
        site.json(&["dead", "retry", "--all"]).await,
        serde_json::json!({"retried": 1})
    );
    site.json(&["worker", "--once"]).await;
    let status = site.json(&["status"]).await;
    assert_eq!(status["outbox"]["dead"], 0);
    assert_eq!(
        status["notes"],
        serde_json::json!({"live": 2, "indexed": 2})
    );
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

#[tokio::test]
async fn a_second_process_on_the_embedded_folder_is_told_who_has_it() {
    let site = Site::start().await;
    let worker = site.worker();
    worker.says("worker started").await;
    let pid = worker.pid().to_string();
    for args in [
        &["search", "anything"][..],
        &["worker", "--once"],
        &["worker"],
    ] {
        let done = site.elf(args).await;
        assert!(matches!(done.code, Some(1 | 78)), "{done:?}");
        done.says(&[&pid, "index", "storage.qdrant.url"]);
    }
    // Commands that only read Postgres still work.
    let status = site.json(&["status"]).await;
    assert_eq!(status["outbox"]["dead"], 0);
    worker.stop().await.exits(0);
    site.json(&["search", "anything"]).await;
}

#[cfg(feature = "local")]
#[tokio::test]
async fn chunks_beyond_the_window_of_the_model_are_refused() {
    let site = Site::start().await;
    let provider = site.provider.url().to_owned();
    site.configure("provider = \"openai\"", "provider = \"local\"");
    site.configure(&format!("api_base = \"{provider}\"\n"), "");
    site.configure(
        "model = \"test\"",
        &format!("model = \"{}\"", crate::support::harness::model().display()),
    );
    site.configure("max_tokens = 32", "max_tokens = 257");
    for args in [&["worker", "--once"][..], &["worker"], &["search", "word"]] {
        let done = site.elf(args).await.exits(78);
        done.says(&["chunking.max_tokens", "257", "256"]);
    }
    site.configure("max_tokens = 257", "max_tokens = 256");
    site.json(&["worker", "--once"]).await;
}

#[tokio::test]
async fn other_settings_than_those_of_the_database_are_refused_by_name() {
    let site = Site::start().await;
    site.json(&["worker", "--once"]).await;
    site.configure("max_tokens = 32", "max_tokens = 48");
    for args in [&["worker", "--once"][..], &["worker"], &["search", "word"]] {
        let done = site.elf(args).await.exits(78);
        done.says(&["chunking.max_tokens", "48", "32"]);
    }
    site.configure("max_tokens = 48", "max_tokens = 32");
    site.configure("model = \"test\"", "model = \"another\"");
    let done = site.elf(&["worker", "--once"]).await.exits(78);
    done.says(&["providers.embedding.model", "another", "test"]);
    site.configure("model = \"another\"", "model = \"test\"");
    site.json(&["worker", "--once"]).await;
}

#[tokio::test]
async fn a_provider_that_refuses_the_key_is_told_at_every_start() {
    let site = Site::start().await;
    for _ in 0..2 {
        site.provider.always(Behaviour::Status(401));
        let done = site.elf(&["worker"]).await.exits(78);
        done.says(&["providers.embedding.api_key"]);
        site.provider.heal();
        // From here on the dimension is known.
        site.json(&["worker", "--once"]).await;
    }
}

#[tokio::test]
async fn a_stop_ends_an_idle_worker() {
    for name in ["TERM", "INT"] {
        let site = Site::start().await;
        let worker = site.worker();
        worker.says("worker started").await;
        worker.signal(name).await;
        let done = worker.ended().await.exits(0);
        assert_eq!(done.json()["notes"], 0);
    }
}

#[tokio::test]
async fn a_stop_releases_what_does_not_end_within_the_grace_period() {
    let site = Site::start().await;
    site.configure("grace_secs = 5", "grace_secs = 0");
    let worker = site.worker();
    worker.says("worker started").await;
    site.provider.hold();
    let mut db = site.connect().await;
    sqlx::query(
        "insert into memory_notes (tenant_id, project_id, agent_id, scope, type, text)
         values ('t', 'p', 'a', 's', 'n', 'held')",
    )
    .execute(&mut db)
    .await
    .unwrap();
    site.provider.holding(1).await;
    worker.stop().await.exits(0).json();
    let (leased, attempts): (i64, i32) = sqlx::query_as(
        "select (select count(*) from note_index_state where lease_until is not null),
                (select max(attempts) from indexing_outbox)",
    )
    .fetch_one(&mut db)
    .await
    .unwrap();
    assert_eq!((leased, attempts), (0, 0));
    site.provider.release();
    let worked = site.json(&["worker", "--once"]).await;
    assert_eq!(
        (&worked["notes"], &worked["points"]),
        (&1.into(), &1.into())
    );
    db.close().await.unwrap();
}

#[tokio::test]
async fn the_admin_port_tells_when_the_worker_is_ready() {
    let site = Site::start().await;
    let worker = site.worker();
    let admin = worker.admin().await;
    worker.says("worker started").await;
    let get = async |path: &str| {
        let answer = reqwest::get(format!("{admin}{path}")).await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    };
    assert_eq!(get("/livez").await.0, 200);
    let (status, body) = get("/readyz").await;
    assert_eq!(status, 200, "{body}");

    let mut db = site.connect().await;
    site.provider.always(Behaviour::Status(503));
    sqlx::query(
        "insert into memory_notes (tenant_id, project_id, agent_id, scope, type, text)
         values ('t', 'p', 'a', 's', 'n', 'waits for the provider')",
    )
    .execute(&mut db)
    .await
    .unwrap();
    eventually(async || get("/readyz").await.0 == 503).await;
    let (_, body) = get("/readyz").await;
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(body["ready"], false);
    let checks = body["checks"].as_array().unwrap();
    let provider = checks
        .iter()
        .find(|check| check["name"] == "provider")
        .unwrap();
    assert!(
        provider["reason"].as_str().unwrap().contains("503"),
        "{body}"
    );
    assert_eq!(get("/livez").await.0, 200);

    site.provider.heal();
    eventually(async || get("/readyz").await.0 == 200).await;
    eventually(async || {
        let (status, metrics) = get("/metrics").await;
        assert_eq!(status, 200);
        metrics.contains("elf_notes_indexed_total 1")
            && metrics.contains("elf_points_written_total 1")
            && metrics.contains("elf_outbox_rows{state=\"pending\"} 0")
            && metrics.contains("elf_outbox_oldest_pending_seconds 0")
    })
    .await;
    assert_eq!(get("/nowhere").await.0, 404);
    worker.stop().await.exits(0);
}

#[tokio::test]
async fn completions_and_manual_pages_come_from_the_commands_themselves() {
    let folder = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let mut command = elf(folder.path());
        command.args(["completions", shell]);
        let script = run(command, b"").await.exits(0).stdout;
        for word in ["rebuild", "once"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    let mut command = elf(folder.path());
    command.args(["man", "pages"]);
    run(command, b"").await.exits(0);
    let page =
        |name: &str| std::fs::read_to_string(folder.path().join("pages").join(name)).unwrap();
    assert!(
        page("elf.1").contains("elf\\-rebuild(1)"),
        "{}",
        page("elf.1")
    );
    assert!(page("elf-worker.1").contains("once"));
}

#[tokio::test]
async fn a_second_demo_leaves_the_first_alone() {
    let site = Site::empty().await;
    let mut first = site.connect().await;
    sqlx::query("select pg_advisory_lock(x'656c665f64656d6f'::bigint)")
        .execute(&mut first)
        .await
        .unwrap();
    let database = format!("--database-url={}", site.database.url());
    site.elf(&["demo", &database])
        .await
        .exits(1)
        .says(&["another demo is running", "--keep"]);
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

#[tokio::test]
async fn an_import_for_one_tenant_touches_no_other() {
    let site = Site::start().await;
    let theirs = uuid::Uuid::from_u128(7);
    let note = |id: u128, tenant: &str, text: &str| {
        let id = uuid::Uuid::from_u128(id);
        format!("{{\"note_id\": \"{id}\", \"tenant_id\": \"{tenant}\", \"text\": \"{text}\"}}\n")
    };
    let import = async |args: &[&str], lines: &str| {
        let args = [&["import", "-"], args].concat();
        site.elf_reading(&args, lines.as_bytes()).await
    };
    import(&[], &note(7, "acme", "Theirs.")).await.exits(0);

    let unsaid = format!("{{\"note_id\": \"{theirs}\", \"text\": \"Stolen.\"}}\n");
    let lines = format!(
        "{unsaid}{}{}{{\"key\": \"k\", \"text\": \"No tenant.\"}}\n",
        note(8, "acme", "Smuggled."),
        note(9, "initech", "Own.")
    );
    import(&["--tenant", "initech"], &lines)
        .await
        .exits(1)
        .says(&[
            "\"acme\", not \"initech\"",
            &theirs.to_string(),
            "skipped 2 notes",
        ]);
    let rows = async || -> Vec<(String, String)> {
        sqlx::query_as("select tenant_id, text from memory_notes order by text")
            .fetch_all(&mut site.connect().await)
            .await
            .unwrap()
    };
    let row = |tenant: &str, text: &str| (tenant.to_owned(), text.to_owned());
    assert_eq!(
        rows().await,
        [
            row("initech", "No tenant."),
            row("initech", "Own."),
            row("acme", "Theirs.")
        ]
    );
    import(
        &["--tenant", "initech", "--tenant-from-file"],
        &note(8, "acme", "Allowed."),
    )
    .await
    .exits(0);
    assert!(rows().await.contains(&row("acme", "Allowed.")));
}

#[tokio::test]
async fn a_command_that_changes_something_says_so_in_the_audit() {
    let site = Site::start().await;
    for (args, is_change) in [
        (&["enqueue", "--all"][..], true),
        (&["dead", "purge", "--all"], true),
        (&["dead", "list"], false),
        (&["status"], false),
    ] {
        let done = site.elf(args).await.exits(0);
        let line = done.stderr.lines().find(|line| line.contains("elf::audit"));
        assert_eq!(line.is_some(), is_change, "{args:?}: {}", done.stderr);
        if let Some(line) = line {
            assert!(args.iter().all(|arg| line.contains(arg)), "{line}");
        }
    }
}
