//! A database knows which index it has. No second one is made without a word.
#![cfg(feature = "embedded")]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::support::database::TestDatabase;
use crate::support::qdrant::Qdrant;
use crate::support::site::{Site, elf, run};

/// A site with a note that is indexed, whose URL is relative.
async fn indexed() -> Site {
    let site = Site::start().await;
    let absolute = format!("embedded:{}", site.path("index").display());
    site.configure(&absolute, "embedded:index");
    site.note("A zebra stands there.").await;
    site.elf(&["worker", "--once"]).await.exits(0);
    site
}

#[tokio::test]
async fn a_relative_folder_starts_at_the_configuration() {
    let site = indexed().await;
    let elsewhere = tempfile::tempdir().unwrap();
    let mut status = elf(elsewhere.path());
    status
        .arg("-c")
        .arg(site.path("elf.toml"))
        .args(["status", "--json"]);
    let status = run(status, b"").await.exits(0).json();
    assert_eq!(status["collection"]["points"], 1, "{status}");
    assert_eq!(elsewhere.path().read_dir().unwrap().count(), 0);
}

#[tokio::test]
async fn another_folder_is_refused_until_a_rebuild_fills_it() {
    let site = indexed().await;
    site.configure("embedded:index", "embedded:other");
    let (here, there) = (site.path("index"), site.path("other"));
    let (here, there) = (here.to_str().unwrap(), there.to_str().unwrap());
    for args in [
        &["worker", "--once"][..],
        &["reindex", "--swap"],
        &["search", "zebra"],
    ] {
        let done = site.elf(args).await.exits(78);
        done.says(&[here, there, "elf rebuild"]);
    }
    let status = site.elf(&["status"]).await.exits(0);
    assert!(status.stdout.contains(here), "{}", status.stdout);
    site.elf(&["verify"])
        .await
        .exits(78)
        .says(&[here, "elf rebuild"]);

    site.elf(&["rebuild"]).await.exits(0);
    site.elf(&["verify"]).await.exits(0);
    site.elf(&["worker", "--once"]).await.exits(0);
    let texts = site.provider.texts_seen();
    let of_the_note = texts.iter().filter(|text| text.contains("zebra"));
    assert_eq!(of_the_note.count(), 1, "embedded once: {texts:?}");
    site.configure("embedded:other", "embedded:index");
    let done = site.elf(&["worker", "--once"]).await.exits(78);
    done.says(&[here, there]);
}

#[tokio::test]
async fn a_folder_that_moved_is_the_same_index_and_a_lost_one_is_filled_again() {
    let site = indexed().await;
    std::fs::rename(site.path("index"), site.path("moved")).unwrap();
    site.configure("embedded:index", "embedded:moved");
    for args in [&["worker", "--once"][..], &["verify"], &["rebuild"]] {
        site.elf(args).await.exits(0);
    }
    std::fs::remove_dir_all(site.path("moved")).unwrap();
    site.elf(&["worker", "--once"]).await.exits(0);
    site.elf(&["verify"]).await.exits(0);
}

/// Every database calls its first collection the same.
#[tokio::test]
async fn the_index_of_another_database_on_a_server_is_not_taken_over() {
    let test = "the_index_of_another_database_on_a_server_is_not_taken_over";
    let (Some(own), Some(foreign)) = (Qdrant::start(test).await, Qdrant::start(test).await) else {
        return;
    };
    let (site, other) = (Site::start().await, Site::start().await);
    for (site, server) in [(&site, &own), (&other, &foreign)] {
        site.use_server(&server.url());
        site.note("A zebra stands there.").await;
        site.elf(&["worker", "--once"]).await.exits(0);
    }
    site.configure(&own.url(), &foreign.url());
    for args in [&["worker", "--once"][..], &["search", "zebra"], &["verify"]] {
        let done = site.elf(args).await.exits(78);
        done.says(&[&own.url(), &foreign.url(), "elf rebuild"]);
    }
    let refused = site.elf(&["rebuild"]).await.exits(78);
    refused.says(&[&foreign.url(), "--take-alias"]);
    other.elf(&["verify"]).await.exits(0);
    sqlx::query("delete from memory_notes")
        .execute(&mut other.connect().await)
        .await
        .unwrap();
    other.elf(&["worker", "--once"]).await.exits(0);
    site.elf(&["search", "zebra"]).await.exits(78);

    let renamed = own.url().replace("127.0.0.1", "localhost");
    site.configure(&foreign.url(), &renamed);
    site.elf(&["worker", "--once"]).await.exits(0);
    site.elf(&["verify"]).await.exits(0);
}

/// Both databases would write to one index.
#[tokio::test]
async fn a_copied_database_does_not_write_to_the_index_of_the_original() {
    let site = indexed().await;
    let original = site.database.url();
    let name = original.rsplit('/').next().unwrap();
    let name = name.split('?').next().unwrap().to_owned();
    let copy = TestDatabase::create_with(&format!("template {name}")).await;
    site.configure(&original, &copy.url());
    let done = site.elf(&["worker", "--once"]).await.exits(78);
    done.says(&["copied or restored", "elf verify --repair", "elf rebuild"]);
    site.elf(&["rebuild"])
        .await
        .exits(78)
        .says(&["--take-alias"]);
    site.elf(&["status"]).await.exits(0);

    // An index of its own.
    site.configure("embedded:index", "embedded:own");
    site.elf(&["rebuild"]).await.exits(0);
    site.elf(&["worker", "--once"]).await.exits(0);

    // The original, and then a copy that takes its place.
    site.configure("embedded:own", "embedded:index");
    site.configure(&copy.url(), &original);
    site.elf(&["worker", "--once"]).await.exits(0);
    let restored = TestDatabase::create_with(&format!("template {name}")).await;
    site.configure(&original, &restored.url());
    site.elf(&["worker", "--once"]).await.exits(78);
    site.elf(&["verify", "--repair"]).await.exits(0);
    site.elf(&["worker", "--once"]).await.exits(0);
}

#[tokio::test]
async fn only_its_user_may_read_an_index() {
    let site = indexed().await;
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    let index = site.path("index");
    assert_eq!(mode(&index), 0o700);
    assert_eq!(mode(&index.join("collections")), 0o700);
    for file in ["lock", "id", "aliases.json"] {
        assert_eq!(mode(&index.join(file)), 0o600, "{file}");
    }
    let collection = index
        .join("collections")
        .read_dir()
        .unwrap()
        .next()
        .unwrap();
    for file in ["journal", "elf.json"] {
        assert_eq!(
            mode(&collection.as_ref().unwrap().path().join(file)),
            0o600,
            "{file}"
        );
    }
}

#[tokio::test]
async fn the_demo_deletes_nothing_that_it_did_not_make() {
    let site = Site::empty().await;
    let theirs = site.path("theirs");
    std::fs::create_dir(&theirs).unwrap();
    std::fs::write(theirs.join("lock"), "the lock of another program").unwrap();
    let url = site.database.url();
    let arguments = ["demo", "--notes", ".", "--database-url", &url, "--dir"];
    let dir = theirs.to_str().unwrap();
    let done = site.elf(&[&arguments[..], &[dir]].concat()).await;
    done.exits(1).says(&[dir, "--dir"]);
    assert!(theirs.join("lock").exists());
}
