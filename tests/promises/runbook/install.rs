//! The first start, an upgrade, a backup.

use super::machine::{Machine, Section};
use crate::support::components::missing;

#[tokio::test]
async fn the_first_start_works_as_written() {
    let Some(m) = Machine::new("install").await else {
        return;
    };
    let mut install = Section::of("Install");
    m.shows(install.next(), &["elf.toml is fine", "applied"])
        .await;
    m.is_ready(true).await;
    m.shows(
        install.next(),
        &[
            "version     test-8-",
            "notes__1, 0 points, green",
            "\"ready\":true",
        ],
    )
    .await;
    install.end();
    m.write_notes(3).await;
    m.wait_until_drained().await;
    let mut first = Section::of("");
    m.shows(
        first.next(),
        &["3 live, 3 indexed", "\"ready\":true", "worker started"],
    )
    .await;
    first.end();
    let mut size = Section::of("Size");
    m.shows(size.next(), &["note_chunk_embeddings", "bytes_a_row"])
        .await;
    size.end();
}

#[tokio::test]
async fn an_upgrade_works_as_written() {
    let Some(m) = Machine::working("upgrade", 2).await else {
        return;
    };
    let mut upgrade = Section::of("Upgrade");
    let forward = upgrade.next();
    upgrade.end();
    m.shows(
        forward,
        &["elf 0.", "the schema is up to date", "2 live, 2 indexed"],
    )
    .await;
    m.is_ready(true).await;
}

#[tokio::test]
async fn a_postgres_from_a_dump_is_what_the_index_becomes_as_written() {
    let Some(m) = Machine::working("back up and restore", 6).await else {
        return;
    };
    let mut section = Section::of("Back up and restore");
    let (dump, restore, done) = (section.next(), section.next(), section.next());
    section.end();
    if let Some(reason) = cannot_dump(&m).await {
        return missing("pg_dump", "back up and restore", &reason);
    }
    m.shows(dump, &[]).await;
    let later = async || {
        m.write_notes(1).await;
        m.execute(
            "update memory_notes set text = text || ' And more.' where text like '%matter 1%'",
        )
        .await;
        m.execute("delete from memory_notes where text like '%matter 5%'")
            .await;
        m.wait_until_drained().await;
    };
    later().await;

    let restored = m.shows(restore, &["6 notes", " repaired"]).await;
    assert!(!restored.stdout.contains(" 0 repaired"), "{restored:?}");
    m.shows(
        done,
        &[
            "6 notes",
            ": 0 missing, 0 stale, 0 orphaned, 0 notes inconsistent",
        ],
    )
    .await;
    // Later writes are newer than every point in the index.
    later().await;
    m.run("elf verify --deep").await.exits(0);

    // Rebuilt since the backup.
    m.run("elf rebuild && systemctl stop elf").await.exits(0);
    let again =
        "pg_restore --clean --if-exists --single-transaction --dbname=\"$DATABASE_URL\" elf.dump";
    m.run(again).await.exits(0);
    m.run("elf verify --repair")
        .await
        .exits(1)
        .says(&["is gone: run `elf rebuild`"]);
    m.run("elf rebuild")
        .await
        .exits(78)
        .says(&["elf rebuild --take-alias"]);
    m.run("elf rebuild --take-alias")
        .await
        .exits(0)
        .says(&["alias taken over"]);
    m.run("elf verify --deep").await.exits(0);
}

/// Why this machine cannot dump the test server's databases, if it cannot.
async fn cannot_dump(m: &Machine) -> Option<String> {
    let version = m.run("pg_dump --version && command -v pg_restore").await;
    if version.code != Some(0) {
        return Some("there is no pg_dump and pg_restore on the PATH".into());
    }
    let dump = version.stdout.split_whitespace().nth(2).unwrap_or_default();
    let dump: i32 = dump
        .split('.')
        .next()
        .unwrap_or_default()
        .parse()
        .unwrap_or(0);
    let server: i32 =
        sqlx::query_scalar("select current_setting('server_version_num')::int / 10000")
            .fetch_one(&mut m.db().await)
            .await
            .unwrap();
    (dump < server).then(|| format!("pg_dump {dump} is older than the server, {server}"))
}
