//! Commands that change the outbox, `elf enqueue` and `elf dead`, and the line that each
//! writes to the audit log.

use uuid::Uuid;

use super::{WORKED_KEYS, assert_keys};
use crate::support::embedding_server::Behaviour;
use crate::support::eventually;
use crate::support::site::Site;

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
        "key",
        "title",
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
    let lines: Vec<&str> = in_words.stdout.lines().collect();
    assert!(lines[0].starts_with("DEAD SINCE"), "{in_words:?}");
    assert!(
        lines[1].contains(note_id) && lines[1].contains("  bad "),
        "{in_words:?}"
    );
    let in_words = site.elf(&["status"]).await.exits(0);
    assert!(in_words.stdout.contains("dead: bad: "), "{in_words:?}");

    for command in [["dead", "retry"], ["dead", "purge"], ["enqueue", "--note"]] {
        let args = [&command[..], &[&stranger]].concat();
        site.elf(&args).await.exits(1).says(&["one of these"]);
    }
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
