//! `elf import FOLDER --sync` makes the notes of a folder equal to its files, and touches no others.

use serde_json::{Value, json};
use sqlx::AssertSqlSafe;
use uuid::Uuid;

use crate::support::eventually;
use crate::support::site::Site;

async fn sync(site: &Site, args: &[&str]) -> Value {
    let args = [&["import", "notes", "--sync"], args].concat();
    site.json(&args).await
}

/// How many notes a sync added, changed, moved and deleted.
fn changes(report: &Value) -> [u64; 4] {
    ["added", "changed", "moved", "deleted"].map(|change| report[change].as_u64().unwrap())
}

/// The file and text of every note, in the order of the keys.
async fn notes(site: &Site) -> Vec<(String, String)> {
    let notes =
        sqlx::query_as("select key, text from memory_notes order by key collate \"C\", text");
    notes.fetch_all(&mut site.connect().await).await.unwrap()
}

async fn keys(site: &Site) -> Vec<String> {
    notes(site).await.into_iter().map(|(key, _)| key).collect()
}

async fn execute(site: &Site, sql: &str) {
    let sql = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()));
    sql.execute(&mut site.connect().await).await.unwrap();
}

async fn id_of(site: &Site, key: &str) -> Uuid {
    let id = sqlx::query_scalar("select note_id from memory_notes where key = $1");
    id.bind(key)
        .fetch_one(&mut site.connect().await)
        .await
        .unwrap()
}

fn rename(site: &Site, from: &str, to: &str) {
    std::fs::create_dir_all(site.path(to).parent().unwrap()).unwrap();
    std::fs::rename(site.path(from), site.path(to)).unwrap();
}

fn remove(site: &Site, name: &str) {
    std::fs::remove_file(site.path(name)).unwrap();
}

/// Four files.
fn write_some(site: &Site) {
    for name in ["a", "b", "deeper/c", "deeper/d"] {
        site.write(&format!("notes/{name}.md"), format!("The text of {name}."));
    }
}

#[tokio::test]
async fn a_sync_adds_changes_moves_and_deletes_and_embeds_each_text_once() {
    let site = Site::start().await;
    // The title of a file is a part of what is embedded.
    site.configure(
        "max_tokens = 32\n",
        "max_tokens = 128\nlead = [\"title\"]\n",
    );
    write_some(&site);
    assert_eq!(changes(&sync(&site, &[]).await), [4, 0, 0, 0]);
    assert_eq!(changes(&sync(&site, &[]).await), [0, 0, 0, 0]);
    site.json(&["worker", "--once"]).await;
    let embedded = site.provider.texts_seen();
    assert!(
        embedded
            .iter()
            .any(|text| text == "c\nThe text of deeper/c."),
        "{embedded:?}"
    );
    let moved = id_of(&site, "deeper/c.md").await;
    execute(
        &site,
        "update memory_notes set importance = 0.9 where key = 'deeper/c.md'",
    )
    .await;

    site.write("notes/a.md", "Another text.");
    remove(&site, "notes/b.md");
    rename(&site, "notes/deeper", "notes/moved/far");
    site.write("notes/e.md", "A new one.");
    let dry = sync(&site, &["--dry-run"]).await;
    assert_eq!(changes(&dry), [1, 1, 2, 1]);
    let files = json!([
        {"change": "changed", "file": "a.md"},
        {"change": "deleted", "file": "b.md"},
        {"change": "added", "file": "e.md"},
        {"change": "moved", "file": "moved/far/c.md", "from": "deeper/c.md"},
        {"change": "moved", "file": "moved/far/d.md", "from": "deeper/d.md"},
    ]);
    assert_eq!(dry["files"], files);
    let said = site
        .elf(&["import", "notes", "--sync", "--dry-run"])
        .await
        .exits(0)
        .stdout;
    assert!(
        said.contains("move    deeper/c.md -> moved/far/c.md\n") && said.contains("a dry run"),
        "{said}"
    );
    assert_eq!(
        keys(&site).await,
        ["a.md", "b.md", "deeper/c.md", "deeper/d.md"]
    );

    assert_eq!(changes(&sync(&site, &[]).await), [1, 1, 2, 1]);
    assert_eq!(
        keys(&site).await,
        ["a.md", "e.md", "moved/far/c.md", "moved/far/d.md"]
    );
    assert_eq!(id_of(&site, "moved/far/c.md").await, moved);
    let kept: f32 = sqlx::query_scalar("select importance from memory_notes where note_id = $1")
        .bind(moved)
        .fetch_one(&mut site.connect().await)
        .await
        .unwrap();
    assert_eq!(kept, 0.9);
    let report = site.json(&["worker", "--once"]).await;
    assert_eq!(report["embedded"], 2, "{report}");
    let hits = site.json(&["search", "text of c"]).await;
    let has = |key: &str| {
        hits["items"]
            .as_array()
            .unwrap()
            .iter()
            .any(|hit| hit["key"] == key)
    };
    assert!(has("moved/far/c.md") && !has("b.md"), "{hits}");
    site.json(&["verify", "--deep"]).await;
    assert_eq!(changes(&sync(&site, &[]).await), [0, 0, 0, 0]);
}

#[tokio::test]
async fn a_folder_is_the_same_however_it_is_given_and_in_each_tenant_another() {
    let site = Site::start().await;
    write_some(&site);
    sync(&site, &[]).await;
    let absolute = site.path("notes").into_os_string().into_string().unwrap();
    std::os::unix::fs::symlink("notes", site.path("link")).unwrap();
    for folder in ["./notes", "notes/", "notes/deeper/..", "link", &absolute] {
        let report = site.json(&["import", folder, "--sync"]).await;
        assert_eq!(changes(&report), [0, 0, 0, 0], "{folder}");
    }
    let (source, source_id): (String, String) =
        sqlx::query_as("select source, source_id from memory_notes where key = 'deeper/c.md'")
            .fetch_one(&mut site.connect().await)
            .await
            .unwrap();
    let absolute = site.path("notes").canonicalize().unwrap();
    assert_eq!(
        (source, &*source_id),
        (format!("folder:{}", absolute.display()), "deeper/c.md")
    );
    assert_eq!(
        changes(&sync(&site, &["--tenant", "acme"]).await),
        [4, 0, 0, 0]
    );
    remove(&site, "notes/a.md");
    assert_eq!(
        changes(&sync(&site, &["--tenant", "acme"]).await),
        [0, 0, 0, 1]
    );
    assert_eq!(keys(&site).await.len(), 7);
    // An option moves the notes of the folder; it makes no second ones.
    assert_eq!(
        changes(&sync(&site, &["--project", "p"]).await),
        [0, 3, 0, 1]
    );
    assert_eq!(keys(&site).await.len(), 6);
    assert_eq!(changes(&sync(&site, &[]).await), [0, 0, 0, 0]);
    for args in [
        &["notes/b.md", "--sync"][..],
        &["nowhere", "--sync"],
        &["-", "--sync"],
    ] {
        site.elf(&[&["import"], args].concat())
            .await
            .exits(1)
            .says(&[args[0]]);
    }
    site.elf(&["import", "notes", "--dry-run"])
        .await
        .exits(2)
        .says(&["--sync"]);
    // The name is the caller's, if a path is none that lasts.
    assert_eq!(
        changes(&sync(&site, &["--tenant", "t", "--source", "handbook"]).await),
        [3, 0, 0, 0]
    );
    rename(&site, "notes", "elsewhere");
    let args = [
        "import",
        "elsewhere",
        "--sync",
        "--tenant",
        "t",
        "--source",
        "handbook",
    ];
    assert_eq!(changes(&site.json(&args).await), [0, 0, 0, 0]);
}

#[tokio::test]
async fn a_sync_touches_no_note_that_it_did_not_write() {
    let site = Site::start().await;
    write_some(&site);
    site.write("notes/gone.md", "Imported, and then deleted.");
    // By an import without --sync, by an application, and by a table.
    site.json(&["import", "notes"]).await;
    remove(&site, "notes/gone.md");
    execute(
        &site,
        "insert into memory_notes (tenant_id, agent_id, key, text) values ('default', 'import', 'mine', 'Mine.');
         insert into memory_notes (tenant_id, agent_id, key, text, source, source_id)
         values ('default', 'import', 'row', 'A row.', 'tickets', '1')",
    )
    .await;
    let a = id_of(&site, "a.md").await;
    // It takes over what has the key of a file.
    assert_eq!(changes(&sync(&site, &[]).await), [0, 4, 0, 0]);
    assert_eq!(id_of(&site, "a.md").await, a);
    for name in ["a", "b"] {
        remove(&site, &format!("notes/{name}.md"));
    }
    assert_eq!(changes(&sync(&site, &[]).await), [0, 0, 0, 2]);
    let left = ["deeper/c.md", "deeper/d.md", "gone.md", "mine", "row"];
    assert_eq!(keys(&site).await, left);

    // Another folder with a file of the same path does not get the note.
    site.write("other/deeper/c.md", "Another c.");
    site.write("other/row", "no text by its name");
    let done = site
        .elf(&["import", "other", "--sync", "--json"])
        .await
        .exits(1);
    let done = done.says(&[
        "other/deeper/c.md: the note",
        "deeper/c.md of folder:",
        "--project",
    ]);
    assert_eq!(changes(&done.json()), [0, 0, 0, 0]);
    assert!(
        notes(&site)
            .await
            .contains(&("deeper/c.md".into(), "The text of deeper/c.".into()))
    );
    let args = ["import", "other", "--sync", "--project", "other"];
    assert_eq!(changes(&site.json(&args).await), [1, 0, 0, 0]);
    remove(&site, "other/deeper/c.md");
    let args = ["import", "other", "--sync", "--project", "other", "--force"];
    assert_eq!(changes(&site.json(&args).await), [0, 0, 0, 1]);
    assert_eq!(keys(&site).await, left);
}

#[tokio::test]
async fn a_new_file_in_the_place_of_a_moved_one_is_another_note() {
    let site = Site::start().await;
    site.write("notes/a.md", "The first text.");
    site.json(&["import", "notes"]).await;
    sync(&site, &[]).await;
    let first = id_of(&site, "a.md").await;
    rename(&site, "notes/a.md", "notes/b.md");
    assert_eq!(changes(&sync(&site, &[]).await), [0, 0, 1, 0]);
    site.write("notes/a.md", "The second text.");
    assert_eq!(changes(&sync(&site, &[]).await), [1, 0, 0, 0]);
    assert_eq!(id_of(&site, "b.md").await, first);
    assert_eq!(keys(&site).await, ["a.md", "b.md"]);
    // An import without --sync, too.
    execute(&site, "delete from memory_notes where key = 'a.md'").await;
    assert_eq!(site.json(&["import", "notes/../notes"]).await["changed"], 1);
    let texts: Vec<String> = notes(&site)
        .await
        .into_iter()
        .map(|(_, text)| text)
        .collect();
    assert_eq!(texts, ["The second text.", "The first text."]);
}

#[tokio::test]
async fn more_than_half_goes_only_by_force_and_what_cannot_be_read_stays() {
    let site = Site::start().await;
    write_some(&site);
    sync(&site, &[]).await;
    // A file that is moved does not go, and nothing is written if a sync is refused.
    rename(&site, "notes/a.md", "notes/z.md");
    for name in ["b", "deeper/c", "deeper/d"] {
        remove(&site, &format!("notes/{name}.md"));
    }
    site.write("notes/new.md", "New.");
    let refused = site.elf(&["import", "notes", "--sync"]).await.exits(1);
    refused.says(&["3 of the 4 notes", "--force", "no note was deleted"]);
    assert_eq!(
        keys(&site).await,
        ["a.md", "b.md", "deeper/c.md", "deeper/d.md"]
    );
    assert_eq!(changes(&sync(&site, &["--dry-run"]).await), [1, 0, 1, 3]);
    site.write("notes/deeper/c.md", "The text of deeper/c.");
    assert_eq!(changes(&sync(&site, &[]).await), [1, 0, 1, 2]);
    assert_eq!(keys(&site).await, ["deeper/c.md", "new.md", "z.md"]);
    // No file at all, as where a disk is not mounted.
    std::fs::remove_dir_all(site.path("notes")).unwrap();
    std::fs::create_dir(site.path("notes")).unwrap();
    site.elf(&["import", "notes", "--sync"])
        .await
        .exits(1)
        .says(&["3 of the 3 notes"]);
    assert_eq!(changes(&sync(&site, &["--force"]).await), [0, 0, 0, 3]);
}

/// Only one that cannot be read keeps the note of its last text: `cases/files.rs`.
#[tokio::test]
async fn a_file_that_is_no_text_any_more_has_no_note() {
    let site = Site::start().await;
    site.configure("[worker]\n", "[worker]\nmax_note_bytes = 65536\n");
    let names = [
        "binary", "empty", "folder", "inside", "latin", "long", "loop", "outside",
    ];
    for name in names {
        site.write(&format!("notes/{name}.md"), format!("The text of {name}."));
    }
    for n in 0..9 {
        site.write(&format!("notes/more/{n}.md"), format!("Text {n}."));
    }
    assert_eq!(changes(&sync(&site, &[]).await), [17, 0, 0, 0]);
    site.write("notes/binary.md", b"\x7fELF\0");
    site.write("notes/empty.md", "");
    site.write("notes/latin.md", b"Caf\xe9");
    site.write("notes/long.md", "long ".repeat(20_000));
    for (name, target) in [
        ("folder", None),
        ("inside", Some("more/1.md")),
        ("outside", Some("/etc/hostname")),
        ("loop", Some("loop.md")),
    ] {
        remove(&site, &format!("notes/{name}.md"));
        let path = site.path(&format!("notes/{name}.md"));
        match target {
            None => std::fs::create_dir(path).unwrap(),
            Some(target) => std::os::unix::fs::symlink(target, path).unwrap(),
        }
    }
    let dry = site
        .elf(&["import", "notes", "--sync", "--dry-run", "--json"])
        .await
        .exits(1);
    assert_eq!(changes(&dry.json()), [0, 1, 0, 7]);
    let done = site
        .elf(&["import", "notes", "--sync", "--json"])
        .await
        .exits(1);
    let report = done.says(&[
        "binary.md: a binary file",
        "inside.md: a symbolic link",
        "latin.md: not UTF-8",
        "long.md: longer than",
    ]);
    let report = report.json();
    assert_eq!(
        (changes(&report), &report["passed_over"]["binary"]),
        ([0, 1, 0, 7], &json!(1))
    );
    let left = notes(&site).await;
    assert_eq!(left.len(), 10);
    assert_eq!(left[0], ("empty.md".into(), String::new()));
    // More than half does not go so either.
    for n in 0..9 {
        site.write(&format!("notes/more/{n}.md"), b"\0");
    }
    let refused = site.elf(&["import", "notes", "--sync"]).await.exits(1);
    refused.says(&["9 of the 10 notes", "no texts any more"]);
    assert_eq!(keys(&site).await.len(), 10);
}

#[tokio::test]
async fn title_and_metadata_of_a_synced_note_are_the_files() {
    let site = Site::start().await;
    let front = |title: &str| format!("---\ntitle: {title}\nlang: de\n---\nText.");
    site.write("notes/a.md", front("One"));
    sync(&site, &[]).await;
    let row = async || -> (Option<String>, Value, String) {
        let row = sqlx::query_as("select title, metadata, text from memory_notes");
        row.fetch_one(&mut site.connect().await).await.unwrap()
    };
    assert_eq!(
        row().await,
        (Some("One".into()), json!({"lang": "de"}), "Text.".into())
    );
    site.write("notes/a.md", front("Two"));
    assert_eq!(changes(&sync(&site, &[]).await), [0, 1, 0, 0]);
    assert_eq!(row().await.0.as_deref(), Some("Two"));
    site.write("notes/a.md", "Text.");
    rename(&site, "notes/a.md", "notes/b.md");
    assert_eq!(changes(&sync(&site, &[]).await), [0, 0, 1, 0]);
    assert_eq!(row().await, (Some("b".into()), json!({}), "Text.".into()));
}

#[tokio::test]
async fn a_watch_follows_the_files_until_it_is_stopped() {
    let (site, line) = Site::start().await.behind_a_proxy().await;
    write_some(&site);
    let watch = site.begin(&["import", "notes", "--sync", "--watch", "--json"]);
    let has = async |expected: &[(&str, &str)]| {
        let expected: Vec<_> = expected
            .iter()
            .map(|(key, text)| ((*key).to_owned(), (*text).to_owned()))
            .collect();
        eventually(async || notes(&site).await == expected).await;
    };
    let (c, d) = (
        ("deeper/c.md", "The text of deeper/c."),
        ("deeper/d.md", "The text of deeper/d."),
    );
    has(&[("a.md", "The text of a."), ("b.md", "The text of b."), c, d]).await;
    // As editors write: to another file, which then gets the name.
    site.write("notes/.a.md.swp", "A is edited.");
    rename(&site, "notes/.a.md.swp", "notes/a.md");
    remove(&site, "notes/b.md");
    site.write("notes/e.md", "New.");
    has(&[("a.md", "A is edited."), c, d, ("e.md", "New.")]).await;
    // Postgres is away, and comes back.
    line.cut();
    site.write("notes/a.md", "A is edited again.");
    watch.says("sync interrupted; trying again").await;
    line.restore();
    has(&[("a.md", "A is edited again."), c, d, ("e.md", "New.")]).await;
    // A disk that is gone deletes nothing, and the watch goes on.
    rename(&site, "notes", "unmounted");
    watch.says("cannot list it").await;
    std::fs::create_dir(site.path("notes")).unwrap();
    watch.says("4 of the 4 notes").await;
    std::fs::remove_dir(site.path("notes")).unwrap();
    rename(&site, "unmounted", "notes");
    site.write("notes/e.md", "New again.");
    has(&[("a.md", "A is edited again."), c, d, ("e.md", "New again.")]).await;
    let done = watch.stop().await.exits(0);
    let first = done.stdout.lines().next().unwrap();
    let first: Value = serde_json::from_str(first).unwrap();
    assert_eq!(changes(&first), [4, 0, 0, 0], "{}", done.stdout);
}

#[tokio::test]
async fn a_folder_of_two_tenants_is_not_removed_for_both() {
    let site = Site::start().await;
    write_some(&site);
    for tenant in ["t", "u"] {
        sync(&site, &["--source", "docs", "--tenant", tenant]).await;
    }
    let refused = site.elf(&["source", "remove", "folder:docs"]).await;
    refused
        .exits(1)
        .says(&["2 tenants", "folder:docs", "notes:delete"]);
    assert_eq!(notes(&site).await.len(), 8);
    execute(&site, "delete from memory_notes where tenant_id = 'u'").await;
    site.elf(&["source", "remove", "folder:docs"])
        .await
        .exits(0);
    assert_eq!(notes(&site).await.len(), 0);
}
