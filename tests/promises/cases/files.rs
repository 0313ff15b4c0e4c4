//! Files and texts as people have them.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use serde_json::Value;

use super::Case;
use crate::support::site::{Done, Site, program, run};

/// Key, text, importance and status of every note, in the order of the keys.
async fn notes(site: &Site) -> Vec<(String, String, f32, String)> {
    sqlx::query_as(
        "select key, text, importance, status from memory_notes order by key collate \"C\"",
    )
    .fetch_all(&mut site.connect().await)
    .await
    .unwrap()
}

async fn keys(site: &Site) -> Vec<String> {
    notes(site).await.into_iter().map(|note| note.0).collect()
}

async fn import(site: &Site, lines: &[u8]) -> Value {
    let done = site.elf_reading(&["import", "-", "--json"], lines).await;
    done.exits(0).json()
}

async fn found(site: &Site, query: &str, by: &str) -> Vec<String> {
    let answer = site.json(&["search", query, "--by", by]).await;
    let items = answer["items"].as_array().unwrap();
    let mut keys: Vec<String> = items
        .iter()
        .map(|item| item["key"].as_str().unwrap().to_owned())
        .collect();
    keys.sort();
    keys
}

pub async fn import_key(case: Case) {
    let site = Site::start().await;
    assert_eq!(
        import(&site, &case.bytes("first.jsonl")).await["changed"],
        1
    );
    assert_eq!(
        import(&site, &case.bytes("first.jsonl")).await["changed"],
        0
    );
    assert_eq!(
        import(&site, &case.bytes("second.jsonl")).await["changed"],
        1
    );
    assert_eq!(keys(&site).await, ["birch"]);

    let dune = b"{\"key\":\"dune\",\"text\":\"Dune grass holds the bank.\"}";
    assert_eq!(import(&site, dune).await["changed"], 1);
    let reset = case.text("reset-by-reimport.sql");
    sqlx::raw_sql(sqlx::AssertSqlSafe(reset))
        .execute(&mut site.connect().await)
        .await
        .unwrap();
    assert_eq!(import(&site, dune).await["changed"], 0);
    let expires: Option<bool> =
        sqlx::query_scalar("select expires_at > now() from memory_notes where key = 'dune'")
            .fetch_one(&mut site.connect().await)
            .await
            .unwrap();
    let left = notes(&site).await.pop().unwrap();
    assert_eq!(
        (left.2, left.3.as_str(), expires),
        (0.9, "archived", Some(true))
    );
}

pub async fn byte_order_mark(case: Case) {
    let site = Site::start().await;
    let imported = import(&site, &case.bytes("notes.jsonl")).await;
    assert_eq!(
        (&imported["read"], &imported["changed"]),
        (&2.into(), &2.into())
    );
    assert_eq!(keys(&site).await, ["ash", "elm"]);
}

pub async fn accents(case: Case) {
    let site = Site::start().await;
    import(&site, &case.bytes("notes.jsonl")).await;
    site.json(&["worker", "--once"]).await;
    let queries = case.text("queries.txt");
    let queries: Vec<&str> = queries.lines().collect();
    for query in &queries[..2] {
        assert_eq!(found(&site, query, "bm25").await, ["nfc", "nfd"], "{query}");
    }
    assert_eq!(found(&site, queries[2], "bm25").await, ["plain"]);
    // The provider gets one form of both, and so one vector is the other's.
    let sent = site.provider.texts_seen();
    let accented: Vec<&String> = sent.iter().filter(|text| !text.is_ascii()).collect();
    assert!(!accented.is_empty());
    assert!(
        accented.iter().all(|text| text.contains('\u{e9}')),
        "{accented:?}"
    );
    let texts: Vec<String> =
        sqlx::query_scalar("select text from memory_note_chunks order by text")
            .fetch_all(&mut site.connect().await)
            .await
            .unwrap();
    assert!(
        texts.iter().any(|text| text.contains("e\u{301}")),
        "{texts:?}"
    );

    site.write(
        "elf.toml",
        site.toml() + "\n[storage.qdrant.bm25]\nascii_folding = true\n",
    );
    site.elf(&["worker", "--once"])
        .await
        .exits(78)
        .says(&["elf rebuild"]);
    let sent = site.provider.texts_seen().len();
    site.elf(&["rebuild"]).await.exits(0);
    assert_eq!(
        site.provider.texts_seen().len(),
        sent,
        "a rebuild embeds nothing"
    );
    for query in queries {
        assert_eq!(
            found(&site, query, "bm25").await,
            ["nfc", "nfd", "plain"],
            "{query}"
        );
    }
}

pub async fn file_names(_: Case) {
    let site = Site::start().await;
    let (nfd, nfc) = ("f/Mu\u{308}hle.md", "f/M\u{fc}hle.md");
    site.write(nfd, "The mill wheel turns.");
    assert_eq!(site.json(&["import", "f"]).await["changed"], 1);
    std::fs::rename(site.path(nfd), site.path(nfc)).unwrap();
    assert_eq!(site.json(&["import", "f"]).await["changed"], 0);
    assert_eq!(keys(&site).await, ["M\u{fc}hle.md"]);
    // Both beside each other, as Linux allows: one is the note, and the other is named.
    site.write(nfd, "Another mill.");
    let done = site.elf(&["import", "f", "--json"]).await.exits(1);
    assert_eq!(
        (&done.json()["read"], &done.json()["skipped"]),
        (&1.into(), &1.into())
    );
    done.says(&["the same name in another form of Unicode"]);

    site.write("g/other.md", "The kiln is old.");
    for (name, text) in [
        (&b"g/log\xff.md"[..], "First log: the kiln cracked."),
        (b"g/log\xfe.md", "Second log: the kiln was mended."),
    ] {
        let path = site
            .folder
            .path()
            .join(Path::new(std::ffi::OsStr::from_bytes(name)));
        std::fs::write(path, text).unwrap();
    }
    let done = site.elf(&["import", "g", "--json"]).await.exits(1);
    assert_eq!(
        (&done.json()["read"], &done.json()["skipped"]),
        (&1.into(), &2.into())
    );
    done.says(&[r"log\xFF.md", r"log\xFE.md", "not UTF-8"]);
}

/// Runs `elf import n` with these arguments as a user whom permissions bind: root may read all.
async fn import_as_nobody(site: &Site, args: &[&str]) -> Done {
    let chmod = |name: &str, mode: u32| {
        std::fs::set_permissions(site.path(name), std::fs::Permissions::from_mode(mode)).unwrap();
    };
    chmod(".", 0o755);
    chmod("elf.toml", 0o644);
    // A copy that this user may run, wherever the build is.
    let copy = site.path("elf");
    std::fs::copy(program(), &copy).unwrap();
    let is_root = std::fs::metadata("/proc/self").unwrap().uid() == 0;
    let mut command = match is_root {
        true => {
            let mut command = tokio::process::Command::new("setpriv");
            command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]);
            command.arg(copy);
            command
        }
        false => tokio::process::Command::new(copy),
    };
    command.args(["import", "n", "--json"]).args(args);
    command.current_dir(site.folder.path()).env_clear();
    command.env("PATH", std::env::var_os("PATH").unwrap());
    run(command, b"").await
}

pub async fn unreadable_folder(_: Case) {
    let site = Site::start().await;
    for (name, text) in [
        ("n/a/one.md", "one"),
        ("n/z/two.md", "two"),
        ("n/locked/three.md", "three"),
        ("n/listed/four.md", "four"),
        ("n/locked-file.md", "five"),
    ] {
        site.write(name, text);
    }
    let chmod = |name: &str, mode: u32| {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(site.path(name), mode).unwrap();
    };
    chmod("n/locked", 0o000);
    chmod("n/listed", 0o444);
    chmod("n/locked-file.md", 0o000);
    let done = import_as_nobody(&site, &[]).await;
    chmod("n/locked", 0o755);
    chmod("n/listed", 0o755);
    let done = done.exits(1).says(&[
        "n/locked",
        "n/listed/four.md",
        "n/locked-file.md",
        "Permission denied",
    ]);
    assert_eq!(
        (&done.json()["read"], &done.json()["skipped"]),
        (&2.into(), &3.into())
    );
    assert_eq!(keys(&site).await, ["a/one.md", "z/two.md"]);

    // A sync deletes what is gone, and nothing that it cannot see now.
    chmod("n/locked-file.md", 0o644);
    import_as_nobody(&site, &["--sync"]).await.exits(0);
    chmod("n/locked", 0o000);
    chmod("n/listed", 0o444);
    chmod("n/locked-file.md", 0o000);
    std::fs::remove_file(site.path("n/z/two.md")).unwrap();
    let done = import_as_nobody(&site, &["--sync"]).await;
    chmod("n/locked", 0o755);
    chmod("n/listed", 0o755);
    assert_eq!(done.exits(1).json()["deleted"], 1);
    let left = [
        "a/one.md",
        "listed/four.md",
        "locked-file.md",
        "locked/three.md",
    ];
    assert_eq!(keys(&site).await, left);
}

pub async fn id_in_cjk(case: Case) {
    let site = Site::start().await;
    import(&site, &case.bytes("notes.jsonl")).await;
    site.json(&["worker", "--once"]).await;
    let queries = case.text("queries.txt");
    let queries: Vec<&str> = queries.lines().collect();
    assert_eq!(found(&site, queries[0], "bm25").await, ["ja-id", "spaced"]);
    assert_eq!(found(&site, queries[1], "bm25").await, ["ja-id2"]);
    // Postgres finds it too, if the index is lost.
    std::fs::remove_dir_all(site.path("index")).unwrap();
    assert_eq!(found(&site, queries[0], "bm25").await, ["ja-id", "spaced"]);
    assert_eq!(found(&site, "5521", "bm25").await, ["ja-id", "spaced"]);
    assert_eq!(found(&site, queries[1], "bm25").await, ["ja-id2"]);
}
