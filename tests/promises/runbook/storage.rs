//! Qdrant is lost, Postgres is unavailable, or the outbox is bloated.

use sqlx::Connection;

use super::machine::{Machine, Section};
use crate::support::eventually;
use crate::support::proxy::Proxy;

#[tokio::test]
async fn a_lost_collection_comes_back_as_written() {
    let Some(m) = Machine::working("Qdrant lost", 4).await else {
        return;
    };
    let requests = m.site.provider.requests();
    m.run("curl -sf -X DELETE \"$QDRANT/collections/notes__1\"")
        .await
        .exits(0);
    m.is_ready(false).await;
    let reason = m.get("/readyz").await;
    assert!(
        reason.contains("points at nothing, so searches find notes in Postgres only"),
        "{reason}"
    );

    let mut lost = Section::of("Qdrant lost");
    let looked = m.shows(lost.next(), &["notes → missing"]).await;
    assert!(!looked.stdout.contains("notes__1"), "{looked:?}");
    m.shows(
        lost.next(),
        &["embedding calls: 0", ": 0 missing, 0 stale, 0 orphaned"],
    )
    .await;
    lost.end();
    m.is_ready(true).await;
    assert_eq!(m.site.provider.requests(), requests);
}

#[tokio::test]
async fn an_empty_qdrant_is_filled_by_a_worker_as_written() {
    let Some(mut m) = Machine::working("Qdrant lost", 4).await else {
        return;
    };
    m.qdrant.kill().await;
    m.is_ready(false).await;
    std::fs::remove_dir_all(m.qdrant.folder().join("storage")).unwrap();
    m.qdrant.restart().await;
    m.write_notes(1).await;
    m.wait_until_drained().await;
    m.is_ready(true).await;
    let said = m.run("cat log").await.stdout;
    assert!(
        said.contains("empty collection created, every note enqueued"),
        "{said}"
    );
    m.run("elf verify --deep").await.exits(0);
}

#[tokio::test]
async fn an_unavailable_postgres_looks_as_written() {
    let Some(m) = Machine::working("postgres unavailable", 1).await else {
        return;
    };
    let (host, port) = m.site.database.server();
    let line = Proxy::to(host, port).await;
    let through = m.site.database.url_through(line.port());
    m.site.configure(&m.site.database.url(), &through);
    m.run("systemctl restart elf").await.exits(0);
    m.is_ready(true).await;
    line.cut();
    let says = "\"name\":\"postgres\",\"ok\":false";
    eventually(async || m.get("/readyz").await.contains(says)).await;
    let mut unavailable = Section::of("Postgres unavailable");
    m.shows(unavailable.next(), &[says, "Postgres is unavailable"])
        .await;
    m.write_note("Waits for the line.").await;
    line.restore();
    m.wait_until_drained().await;
    m.is_ready(true).await;
    m.shows(unavailable.next(), &["0 failed, 0 dead", "\"ready\":true"])
        .await;
    unavailable.end();
    let log = m.run("cat log").await.stdout;
    assert!(
        log.contains("claims resumed reason=\"Postgres is unavailable"),
        "{log}"
    );
}

#[tokio::test]
async fn an_outbox_that_cannot_be_vacuumed_is_explained_as_written() {
    let Some(m) = Machine::working("outbox bloat", 1).await else {
        return;
    };
    let mut application = m.db().await;
    let mut transaction = application
        .begin_with("begin isolation level repeatable read")
        .await
        .unwrap();
    sqlx::query("select count(*) from memory_notes")
        .execute(&mut *transaction)
        .await
        .unwrap();
    m.write_notes(10).await;
    m.wait_until_drained().await;
    let mut bloat = Section::of("Outbox bloat");
    let size = bloat.next();
    m.shows(
        size.clone(),
        &["indexing_outbox", "note_index_state", "n_dead_tup"],
    )
    .await;
    m.shows(
        bloat.next(),
        &["idle in transaction", "select count(*) from memory_notes"],
    )
    .await;
    let (outbox, state, settings) = (bloat.next(), bloat.next(), bloat.next());
    bloat.end();
    // The open transaction prevents vacuum from removing rows; after its end vacuum can.
    m.shows(outbox.clone(), &["VACUUM"]).await;
    let dead = "pg_stat_user_tables where relname = 'indexing_outbox' and n_dead_tup > 0";
    eventually(async || m.count(dead).await == 1).await;
    transaction.rollback().await.unwrap();
    eventually(async || {
        m.shows(outbox.clone(), &["VACUUM"]).await;
        m.count(dead).await == 0
    })
    .await;
    m.shows(state, &["VACUUM"]).await;
    m.shows(settings, &["ALTER TABLE"]).await;
}
