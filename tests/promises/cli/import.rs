//! `elf import` writes what changed, names what it cannot read, and stays within its tenant.

use serde_json::{Value, json};

use crate::support::site::Site;

/// What an import that passed over no file reports.
fn counts(read: u64, changed: u64, skipped: u64) -> Value {
    json!({
        "read": read, "changed": changed, "skipped": skipped,
        "passed_over": {"other": 0, "hidden": 0, "symbolic_links": 0, "binary": 0}, "left_out": 0,
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
        report["passed_over"] =
            json!({"other": 1, "hidden": 1, "symbolic_links": links, "binary": 0});
        report
    };
    assert_eq!(site.json(&["import", "notes"]).await, of_folder(3, 3, 0));
    assert_eq!(site.json(&["import", "notes"]).await, of_folder(3, 0, 0));
    site.write("notes/a.md", "The first note, edited.");
    assert_eq!(site.json(&["import", "notes"]).await, of_folder(3, 1, 0));

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
    let passed_over = "files passed over: 1 of other types, 1 hidden, 1 symbolic link\n";
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
    site.elf(&["import", "empty"]).await.exits(1).says(&[
        "no .md, .txt, .log or .html file in empty",
        "1 of other types",
    ]);
}

#[tokio::test]
async fn logs_are_notes_and_a_note_without_a_chunk_is_named() {
    let site = Site::start().await;
    site.configure(
        "[chunking]\n",
        "[chunking]\nstrategy = \"auto\"\nexclude_headings = [\"License\"]\n",
    );
    site.write("notes/app.log", "12:00 INFO started");
    site.write("notes/LICENSE.md", "# License\n\nDo as you like.");
    let done = site.json(&["import", "notes"]).await;
    assert_eq!((&done["read"], &done["left_out"]), (&json!(2), &json!(1)));
    let said = site.elf(&["import", "notes"]).await.exits(0).stdout;
    assert!(
        said.contains("of 1 note [chunking] leaves out the whole text"),
        "{said}"
    );
    let said = site
        .elf(&["chunk", "notes/LICENSE.md"])
        .await
        .exits(0)
        .stdout;
    assert!(
        said.contains("no chunk: no search finds this text"),
        "{said}"
    );
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
    let long = "x".repeat(1001);
    let long_title = json!({"key": "long", "text": "x", "title": long}).to_string();
    let long_key = json!({"key": long, "text": "x"}).to_string();
    let part = &long[..1000];
    let long_name =
        json!({"key": part, "scope": part, "project_id": part, "text": "x"}).to_string();
    let bad: &[&[u8]] = &[
        b"{\"key\": \"cut short\", \"text\": ",
        b"{\"key\": \"no text\"}",
        b"{\"text\": \"neither key nor id\"}",
        b"{\"key\": \"typo\", \"text\": \"x\", \"tenant\": \"acme\"}",
        b"{\"key\": \"not UTF-8\", \"text\": \"\xff\xfe\"}",
        b"{\"key\": \"NUL\", \"text\": \"a\\u0000b\"}",
        b"{\"key\": \"NUL\\u0000\", \"text\": \"in the key\"}",
        b"{\"key\": \"NUL\", \"text\": \"in the scope\", \"scope\": \"\\u0000\"}",
        b"{\"key\": \"NUL\", \"text\": \"in the title\", \"title\": \"\\u0000\"}",
        b"{\"key\": \"NUL\", \"text\": \"in the source\", \"source_ref\": {\"a\": [\"\\u0000\"]}}",
        b"[1, 2]",
        b"{\"key\": \"twice\", \"text\": \"x\", \"text\": \"y\"}",
        b"{\"key\": \"too important\", \"text\": \"x\", \"importance\": 9}",
        b"{\"key\": \"too sure\", \"text\": \"x\", \"confidence\": -0.5}",
        b"{\"key\": \"of nobody\", \"text\": \"x\", \"tenant_id\": \"\"}",
        b"{\"key\": \"a list\", \"text\": \"x\", \"source_ref\": [5]}",
        long_title.as_bytes(),
        long_key.as_bytes(),
        long_name.as_bytes(),
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
    let twice = site.elf_reading(&["import", "-"], bad[11]).await;
    twice.says(&["stdin:1: column", "duplicate field `text`"]);
    let nine = site.elf_reading(&["import", "-"], bad[12]).await;
    nine.says(&["stdin:1: importance must be 0 to 1, not 9"]);
    let title = site.elf_reading(&["import", "-"], bad[16]).await;
    title.says(&["stdin:1: title has 1001 bytes; at most 1000 are possible"]);
    for file in ["d.docx", "deeper/x.xlsx"] {
        site.write(file, "{\"key\": \"k\", \"text\": \"x\"}");
        let done = site.elf(&["import", file]).await.exits(1);
        done.says(&[file, ".md, .txt, .log and .html files", ".jsonl"]);
    }
    site.write("LICENSE", "License\nno JSON\n");
    let done = site.elf(&["import", "LICENSE"]).await.exits(1);
    done.says(&["LICENSE:1: column"]);
    site.write("notes/good.md", "A good note.");
    site.write("notes/latin1.md", b"Caf\xe9");
    site.write("notes/nul.txt", "a\0b");
    let done = site.elf(&["import", "notes", "--json"]).await;
    let done = done
        .exits(1)
        .says(&["latin1.md", "ignored notes/nul.txt: a binary file"]);
    let mut expected = counts(1, 1, 1);
    expected["passed_over"]["binary"] = json!(1);
    assert_eq!(done.json(), expected);
    let in_words = site.elf(&["import", "notes"]).await.exits(1);
    assert!(
        in_words.stdout.contains("1 note read, 0 new"),
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

#[tokio::test]
async fn files_of_one_name_in_two_folders_are_two_notes() {
    let site = Site::start().await;
    site.write("x/README.md", "The first.");
    site.write("y/README.md", "The second.");
    for file in ["x/README.md", "y/README.md"] {
        assert_eq!(site.json(&["import", file]).await, counts(1, 1, 0));
    }
    // However the path is written.
    let absolute = site.path("x/README.md");
    for (file, changed) in [
        ("./x//README.md", 0),
        ("y/../y/README.md", 0),
        (absolute.to_str().unwrap(), 1),
    ] {
        assert_eq!(
            site.json(&["import", file]).await,
            counts(1, changed, 0),
            "{file}"
        );
    }
    let keys: Vec<String> =
        sqlx::query_scalar("select key from memory_notes order by key collate \"C\"")
            .fetch_all(&mut site.connect().await)
            .await
            .unwrap();
    assert_eq!(
        keys,
        [absolute.to_str().unwrap(), "x/README.md", "y/README.md"]
    );
}

/// What an import may reset: `(text, type, scope, key, importance, confidence, status, expires, source_ref)`.
type Row = (
    String,
    String,
    String,
    Option<String>,
    f32,
    f32,
    String,
    bool,
    Value,
);

async fn row(site: &Site, id: uuid::Uuid) -> Row {
    sqlx::query_as(
        "select text, type, scope, key, importance, confidence, status, expires_at is not null, source_ref
           from memory_notes where note_id = $1",
    )
    .bind(id)
    .fetch_one(&mut site.connect().await)
    .await
    .unwrap()
}

#[tokio::test]
async fn an_import_sets_what_it_names_and_nothing_else() {
    let site = Site::start().await;
    let import = async |args: &[&str], line: Value| {
        let args = [&["import", "-", "--json"], args].concat();
        let done = site.elf_reading(&args, line.to_string().as_bytes()).await;
        done.exits(0).json()["changed"].as_u64().unwrap()
    };
    let execute = async |sql: &str| {
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql.to_owned()))
            .execute(&mut site.connect().await)
            .await
            .unwrap();
    };
    let id = uuid::Uuid::from_u128(7);
    let line = |text: &str| json!({"note_id": id, "text": text});
    assert_eq!(import(&[], line("One.")).await, 1);
    execute(
        "update memory_notes set type = 'fact', scope = 'private', key = 'mine', importance = 0.9,
                confidence = 0.1, status = 'archived', expires_at = now() + interval '9 days',
                source_ref = '{\"page\": 7}', tenant_id = 'acme', project_id = 'p', agent_id = 'a'",
    )
    .await;
    let set = row(&site, id).await;
    assert_eq!(import(&[], line("One.")).await, 0);
    assert_eq!(row(&site, id).await, set);
    // A changed line changes what it names: the note stays archived, and the import says so.
    let changed = site
        .elf_reading(&["import", "-"], line("Two.").to_string().as_bytes())
        .await;
    assert!(
        changed.stdout.contains("1 are archived or expired"),
        "{changed:?}"
    );
    let mut expected = set;
    expected.0 = "Two.".into();
    assert_eq!(row(&site, id).await, expected);
    // Null names something only where a column may be null.
    let mut named = line("Two.");
    named["key"] = Value::Null;
    named["expires_at"] = Value::Null;
    named["importance"] = json!(0.25);
    assert_eq!(import(&["--type", "note"], named).await, 1);
    (expected.3, expected.7, expected.4, expected.1) = (None, false, 0.25, "note".into());
    assert_eq!(row(&site, id).await, expected);
    let labels: (String, String, String) =
        sqlx::query_as("select tenant_id, project_id, agent_id from memory_notes")
            .fetch_one(&mut site.connect().await)
            .await
            .unwrap();
    assert_eq!(labels, ("acme".into(), "p".into(), "a".into()));
    execute("delete from memory_notes").await;

    // A key finds the note that an application wrote with it.
    let own = uuid::Uuid::from_u128(8);
    execute(&format!(
        "insert into memory_notes (note_id, tenant_id, project_id, agent_id, scope, type, key, text)
         values ('{own}', 'default', 'default', 'import', 'shared', 'fact', 'k', 'Theirs.')"
    ))
    .await;
    assert_eq!(import(&[], json!({"key": "k", "text": "Theirs."})).await, 0);
    assert_eq!(
        import(&[], json!({"key": "k", "text": "Changed."})).await,
        1
    );
    assert_eq!(row(&site, own).await.0, "Changed.");
    // A note that the application moved to another scope is not made anew in the old one.
    let moved = json!({"key": "m", "text": "Moved."});
    assert_eq!(import(&[], moved.clone()).await, 1);
    execute("update memory_notes set scope = 'private', key = 'n' where key = 'm'").await;
    assert_eq!(import(&[], moved).await, 0);
    let notes: i64 = sqlx::query_scalar("select count(*) from memory_notes")
        .fetch_one(&mut site.connect().await)
        .await
        .unwrap();
    assert_eq!(notes, 2);
    // A title is set, cleared by null, and else kept.
    let title = async || {
        let titles = "select title from memory_notes where key = 'k'";
        let title: Option<String> = sqlx::query_scalar(titles)
            .fetch_one(&mut site.connect().await)
            .await
            .unwrap();
        title
    };
    let titled = |title: Value| json!({"key": "k", "text": "Changed.", "title": title});
    assert_eq!(import(&[], titled(json!("Tides"))).await, 1);
    assert_eq!(import(&[], titled(json!("Tides"))).await, 0);
    assert_eq!(
        import(&[], json!({"key": "k", "text": "Changed."})).await,
        0
    );
    assert_eq!(title().await.as_deref(), Some("Tides"));
    assert_eq!(import(&[], titled(Value::Null)).await, 1);
    assert_eq!(title().await, None);
    // A file's source is the file's only while nobody has set another.
    site.write("f/a.md", "A file.");
    assert_eq!(site.json(&["import", "f"]).await["changed"], 1);
    execute("update memory_notes set source_ref = '{\"url\": \"x\"}' where key = 'a.md'").await;
    assert_eq!(site.json(&["import", "f"]).await["changed"], 0);
}

#[tokio::test]
async fn a_file_has_the_title_of_its_front_matter_or_its_name() {
    let site = Site::start().await;
    site.write(
        "notes/tides.md",
        "---\ntitle: \"The tides\"\n---\n\n# Tides\n\nText.",
    );
    site.write("notes/a heading.md", "# Moon\n\nText.");
    site.write("notes/harbour/rye bread.txt", "Feed the starter at six.");
    assert_eq!(site.json(&["import", "notes"]).await["changed"], 3);
    let titles = async || {
        let titles: Vec<Option<String>> =
            sqlx::query_scalar("select title from memory_notes order by key")
                .fetch_all(&mut site.connect().await)
                .await
                .unwrap();
        titles
    };
    let expected =
        |titles: [&str; 2]| [None, Some(titles[0].to_owned()), Some(titles[1].to_owned())];
    assert_eq!(titles().await, expected(["rye bread", "The tides"]));
    // What the file says replaces what an application wrote; the file's name does not.
    sqlx::query("update memory_notes set title = 'Mine' where title is not null")
        .execute(&mut site.connect().await)
        .await
        .unwrap();
    assert_eq!(site.json(&["import", "notes"]).await["changed"], 1);
    assert_eq!(titles().await, expected(["Mine", "The tides"]));
}

#[tokio::test]
async fn front_matter_is_metadata_and_no_text() {
    let site = Site::start().await;
    site.write(
        "notes/yaml.md",
        "\u{feff}---\ntitle: Tides\ntags: [sea]\ndate: 2026-05-01\n---\n\nThe text.",
    );
    site.write("notes/toml.md", "+++\npage = 7\n+++\n# The text");
    site.write("notes/rule.md", "---\nA rule is above.\n\n---\nAnd here.");
    site.write("notes/broken.md", "---\ntitle: a: b\n---\nText.");
    site.write(
        "notes/page.html",
        "<title>Moon</title><h1>Phases</h1><ul><li>new<li>full</ul>",
    );
    let done = site.elf(&["import", "notes", "--json"]).await.exits(0);
    let done = done.says(&["notes/broken.md: its front matter is no YAML"]);
    assert_eq!(done.json(), counts(5, 5, 0));
    type Row = (String, Option<String>, String, Value);
    let rows = async || -> Vec<Row> {
        let rows = "select key, title, text, metadata from memory_notes order by key";
        sqlx::query_as(rows)
            .fetch_all(&mut site.connect().await)
            .await
            .unwrap()
    };
    let row = |key: &str, title: Option<&str>, text: &str, metadata: Value| -> Row {
        (key.into(), title.map(Into::into), text.into(), metadata)
    };
    let rule = "---\nA rule is above.\n\n---\nAnd here.";
    let tides = json!({"tags": ["sea"], "date": "2026-05-01"});
    let expected = [
        row(
            "broken.md",
            Some("broken"),
            "---\ntitle: a: b\n---\nText.",
            json!({}),
        ),
        row(
            "page.html",
            Some("Moon"),
            "# Phases\n\n- new\n- full",
            json!({}),
        ),
        row("rule.md", Some("rule"), rule, json!({})),
        row("toml.md", None, "# The text", json!({"page": 7})),
        row("yaml.md", Some("Tides"), "The text.", tides),
    ];
    assert_eq!(rows().await, expected);
    // What an application wrote stays where the file says nothing of it.
    sqlx::query("update memory_notes set metadata = '{\"mine\": 1}'")
        .execute(&mut site.connect().await)
        .await
        .unwrap();
    assert_eq!(site.json(&["import", "notes"]).await["changed"], 2);
    assert_eq!(rows().await[2].3, json!({"mine": 1}));
    site.json(&["worker", "--once"]).await;
    let sent = site.provider.texts_seen();
    assert!(sent.iter().all(|text| !text.contains("sea")), "{sent:?}");
    // elf chunk shows the text that is imported.
    for (file, text) in [
        ("yaml.md", "The text."),
        ("page.html", "# Phases\n\n- new\n- full"),
    ] {
        let shown = site.json(&["chunk", &format!("notes/{file}")]).await;
        assert_eq!(shown["chunks"][0]["text"], text, "{shown}");
    }
    let long = format!("---\na: {}\n---\nText.", "x".repeat(17_000));
    site.write("notes/long.md", long);
    let done = site.elf(&["import", "notes"]).await.exits(1);
    done.says(&["notes/long.md: metadata has 17011 bytes; at most 16384"]);
}

#[tokio::test]
async fn lines_of_one_note_are_written_in_their_order_and_named() {
    let site = Site::start().await;
    let lines = "{\"key\": \"a\", \"text\": \"First.\", \"importance\": 0.75}\n\
                 {\"key\": \"b\", \"text\": \"Other.\"}\n\
                 {\"key\": \"a\", \"text\": \"Second.\"}\n";
    let done = site
        .elf_reading(&["import", "-", "--json"], lines.as_bytes())
        .await;
    let done = done.exits(0).says(&["stdin:3 replaces what stdin:1 says"]);
    assert_eq!(done.json(), counts(3, 3, 0));
    let a: (String, f32) =
        sqlx::query_as("select text, importance from memory_notes where key = 'a'")
            .fetch_one(&mut site.connect().await)
            .await
            .unwrap();
    assert_eq!(a, ("Second.".into(), 0.75));
}

#[tokio::test]
async fn a_note_that_postgres_rejects_is_named_and_the_others_are_written() {
    let site = Site::start().await;
    sqlx::raw_sql(
        "alter table memory_notes add check (importance < 0.75);
         create unique index on memory_notes (tenant_id, project_id, agent_id, scope, key) where key <> ''",
    )
    .execute(&mut site.connect().await)
    .await
    .unwrap();
    let id = |n: u128| uuid::Uuid::from_u128(n);
    let note = |n: u128, key: &str, importance: f32| json!({"note_id": id(n), "key": key, "text": format!("Note {n}."), "importance": importance});
    let import = async |notes: &[Value]| {
        let lines: String = notes.iter().map(|note| format!("{note}\n")).collect();
        site.elf_reading(&["import", "-", "--json"], lines.as_bytes())
            .await
    };
    let mut notes: Vec<Value> = (1..=40).map(|n| note(n, &format!("k{n}"), 0.5)).collect();
    notes[20]["importance"] = json!(0.75);
    let done = import(&notes)
        .await
        .exits(1)
        .says(&["stdin:21: Postgres does not accept the note"]);
    assert_eq!(done.json(), counts(40, 39, 1));
    // A key that goes from one note to another, whichever of them comes first.
    let done = import(&[note(2, "k1", 0.5), note(1, "k0", 0.5)])
        .await
        .exits(0);
    assert_eq!(done.json(), counts(2, 2, 0));
    let done = import(&[note(3, "k1", 0.5)]).await.exits(1);
    assert_eq!(done.json(), counts(1, 0, 1));
}

#[tokio::test]
async fn files_of_other_forms_are_read_or_named() {
    let site = Site::start().await;
    let utf16 = |text: &str| -> Vec<u8> {
        let units = format!("\u{feff}{text}");
        units.encode_utf16().flat_map(u16::to_le_bytes).collect()
    };
    let lines = "{\"key\":\"a\",\"text\":\"Gr\u{f6}\u{df}e\"}\r\n{\"key\":\"b\",\"text\":\"x\"}";
    site.write("wide.jsonl", utf16(lines));
    assert_eq!(site.json(&["import", "wide.jsonl"]).await, counts(2, 2, 0));
    site.write("crlf.jsonl", lines);
    assert_eq!(site.json(&["import", "crlf.jsonl"]).await, counts(2, 0, 0));
    site.write(
        "array.json",
        "[\n {\"key\":\"a\",\"text\":\"Gr\u{f6}\u{df}e\"},\n {\"key\":\"c\"}\n]\n",
    );
    let done = site.elf(&["import", "array.json", "--json"]).await.exits(1);
    let done = done.says(&["array.json: item 2: column"]);
    assert_eq!(done.json(), counts(1, 0, 1));
    for (bytes, reason) in [
        (&b"\x1f\x8b\x08\0\0"[..], "compressed"),
        (b"{\"key\":\"s\",\"text\":\"\\ud83d\"}", ":1: column"),
        (b"{\0\"\0k\0", ":1: column 2"),
    ] {
        site.write("bad.jsonl", bytes);
        let done = site.elf(&["import", "bad.jsonl", "--json"]).await.exits(1);
        let done = done.says(&["bad.jsonl", reason]);
        assert_eq!(done.json(), counts(0, 0, 1));
    }
    site.write("notes/wide.md", utf16("A wide file."));
    site.write("notes/empty.md", "");
    site.write("notes/-dash.md", "A dash.");
    site.write("notes/two\nlines.md", b"\xff\xff");
    let fifo = site.path("notes/fifo.md");
    assert!(
        std::process::Command::new("mkfifo")
            .arg(&fifo)
            .status()
            .unwrap()
            .success()
    );
    std::os::unix::fs::symlink("..", site.path("notes/loop")).unwrap();
    let done = site.elf(&["import", "notes", "--json"]).await.exits(1);
    let done = done.says(&[
        r#""notes/two\nlines.md": not UTF-8"#,
        "loop: a symbolic link",
    ]);
    let mut expected = counts(3, 3, 1);
    expected["passed_over"] = json!({"other": 1, "hidden": 0, "symbolic_links": 1, "binary": 0});
    assert_eq!(done.json(), expected);
    site.configure("[worker]\n", "[worker]\nmax_note_bytes = 10\n");
    site.write("long/long.md", "More than ten bytes.");
    let done = site.elf(&["import", "long"]).await.exits(1);
    done.says(&["long/long.md: longer than worker.max_note_bytes, 10 bytes"]);
}
