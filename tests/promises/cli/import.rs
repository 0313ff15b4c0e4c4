//! `elf import` writes what changed, names what it cannot read, and stays within its tenant.

use serde_json::{Value, json};

use crate::support::site::Site;

/// What an import that passed over no file reports.
fn counts(read: u64, changed: u64, skipped: u64) -> Value {
    json!({
        "read": read, "changed": changed, "skipped": skipped,
        "passed_over": {"other": 0, "hidden": 0, "symbolic_links": 0},
    })
}

#[tokio::test]
async fn a_folder_is_imported_and_only_what_changed_the_next_time() {
    let site = Site::start().await;
    site.write("notes/a.md", "The first note.");
    site.write("notes/deeper/b.txt", "The second note.");
    site.write("notes/c.pdf", "No note.");
    site.write("notes/.hidden.md", "No note either.");
    site.write("notes/UPPER.MD", "The third note.");
    let of_folder = |read: u64, changed: u64, links: u64| {
        let mut report = counts(read, changed, 0);
        report["passed_over"] = json!({"other": 1, "hidden": 1, "symbolic_links": links});
        report
    };
    assert_eq!(site.json(&["import", "notes"]).await, of_folder(3, 3, 0));
    assert_eq!(site.json(&["import", "notes"]).await, of_folder(3, 0, 0));
    site.write("notes/a.md", "The first note, edited.");
    assert_eq!(site.json(&["import", "notes"]).await, of_folder(3, 1, 0));
    // A file's key is its path below the folder, so this is the same note.
    for file in ["notes/a.md", "notes/UPPER.MD"] {
        assert_eq!(site.json(&["import", file]).await, counts(1, 0, 0));
    }

    let mut db = site.connect().await;
    let notes: Vec<(String, String, String, String)> = sqlx::query_as(
        "select key, text, tenant_id, agent_id from memory_notes order by key collate \"C\"",
    )
    .fetch_all(&mut db)
    .await
    .unwrap();
    let of = |key: &str, text: &str| (key.into(), text.into(), "default".into(), "import".into());
    assert_eq!(
        notes,
        [
            of("UPPER.MD", "The third note."),
            of("a.md", "The first note, edited."),
            of("deeper/b.txt", "The second note.")
        ]
    );
    // A link may lead out of the folder, and a byte order mark is no part of the text.
    std::os::unix::fs::symlink("/etc/hostname", site.path("notes/link.md")).unwrap();
    site.write("notes/marked.md", "\u{feff}Marked.");
    let done = site.elf(&["import", "notes", "--json"]).await.exits(0);
    assert_eq!(done.json(), of_folder(4, 1, 1));
    let in_words = site.elf(&["import", "notes"]).await.exits(0);
    let passed_over = "files passed over: 1 neither .md nor .txt, 1 hidden, 1 symbolic link\n";
    assert!(in_words.stdout.ends_with(passed_over), "{in_words:?}");
    let in_words = site.elf(&["import", "notes/a.md"]).await.exits(0);
    assert!(!in_words.stdout.contains("passed over"), "{in_words:?}");
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
        .says(&["no .md or .txt file in empty", "1 neither .md nor .txt"]);
}

#[tokio::test]
async fn jsonl_is_imported_from_a_file_and_from_stdin() {
    let site = Site::start().await;
    let lines = "{\"key\": \"one\", \"text\": \"First.\"}\n\n\
                 {\"key\": \"two\", \"text\": \"Second.\", \"tenant_id\": \"acme\", \"scope\": \"private\", \
                 \"type\": \"fact\", \"importance\": 0.75, \"expires_at\": \"2999-01-01T00:00:00Z\", \
                 \"source_ref\": {\"page\": 7}}\n";
    site.write("notes.jsonl", lines);
    let all = counts(2, 2, 0);
    let none = counts(2, 0, 0);
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
        let expected = counts(2, 2, 1);
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
    assert_eq!(done.json(), counts(1, 1, 2));
    let in_words = site.elf(&["import", "notes"]).await.exits(1);
    assert!(
        in_words.stdout.contains("1 notes read, 0 new"),
        "{in_words:?}"
    );
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
