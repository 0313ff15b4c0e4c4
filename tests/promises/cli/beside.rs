//! Every command works beside a worker that has the embedded index open.

use sqlx::Connection;

use crate::support::eventually;
use crate::support::site::{Running, Site};

/// Writes so many notes.
async fn write(site: &Site, notes: i32) {
    sqlx::query(
        "insert into memory_notes (tenant_id, project_id, agent_id, scope, type, text)
         select 't', 'p', 'a', 's', 'n', 'The zebra number ' || n || ' stands there.'
           from generate_series(1, $1) n",
    )
    .bind(notes)
    .execute(&mut site.connect().await)
    .await
    .unwrap();
}

async fn indexed(site: &Site, notes: u64) {
    eventually(async || site.json(&["status"]).await["notes"]["indexed"] == notes).await;
}

fn name(process: &Running) -> String {
    format!("open in process {}", process.pid())
}

#[tokio::test]
async fn every_command_works_beside_a_worker() {
    let site = Site::start().await;
    let first = site.worker();
    first.says("worker started").await;
    let second = site.worker();
    second.says(&name(&first)).await;
    second.says("worker started").await;
    write(&site, 40).await;
    indexed(&site, 40).await;

    let status = site.json(&["status"]).await;
    let collection = &status["collection"];
    let [points, status] = ["points", "status"].map(|key| &collection[key]);
    assert_eq!((points, status), (&40.into(), &"green".into()));
    let found = site.json(&["search", "zebra"]).await;
    assert_eq!(found["items"].as_array().unwrap().len(), 10, "{found}");
    assert_eq!(found["degraded"], serde_json::json!([]));
    for args in [
        &["rebuild"][..],
        &["verify", "--deep"],
        &["reindex", "--dry-run"],
        &["worker", "--once"],
        &["verify", "--repair"],
    ] {
        site.elf(args).await.exits(0);
    }

    // The second worker goes on, and answers in turn.
    first.kill().await;
    site.note("An okapi stands there.").await;
    second.says("embedded index taken over").await;
    indexed(&site, 41).await;
    let found = site.elf(&["search", "okapi"]).await.exits(0);
    found.says(&[&name(&second)]);
    second.stop().await.exits(0);
    site.elf(&["verify", "--deep"]).await.exits(0);
}

/// The rebuild takes the folder over.
#[tokio::test]
async fn a_rebuild_survives_the_end_of_the_worker_that_has_the_index() {
    let site = Site::start().await;
    let worker = site.worker();
    write(&site, 3000).await;
    indexed(&site, 3000).await;
    let rebuild = site.begin(&["rebuild", "--json"]);
    rebuild.says("rebuilding from Postgres").await;
    worker.kill().await;
    let done = rebuild.ended().await.exits(0);
    done.says(&["embedded index taken over"]);
    site.elf(&["verify", "--deep"]).await.exits(0);
}

/// A short command that has the folder open does not keep a worker from it.
#[tokio::test]
async fn a_worker_takes_the_index_over_from_a_command() {
    let site = Site::start().await;
    write(&site, 500).await;
    let once = site.begin(&["worker", "--once"]);
    once.says("connected to the vector engine").await;
    let worker = site.worker();
    worker.says(&name(&once)).await;
    once.ended().await.exits(0);
    site.note("An okapi stands there.").await;
    worker.says("embedded index taken over").await;
    indexed(&site, 501).await;
    worker.stop().await.exits(0);
    site.elf(&["verify", "--deep"]).await.exits(0);
}

#[tokio::test]
async fn a_search_beside_a_stopped_worker_is_answered_by_postgres() {
    let site = Site::start().await;
    let settings = "[storage.qdrant]\ntimeout_ms = 500";
    site.configure("[storage.qdrant]", settings);
    let worker = site.worker();
    write(&site, 1).await;
    indexed(&site, 1).await;
    worker.signal("STOP").await;
    let search = site.elf(&["search", "zebra", "--json"]).await.exits(0);
    let pid = worker.pid().to_string();
    let search = search.says(&[&pid, "Postgres searches instead"]);
    let found = search.json();
    assert_eq!(found["degraded"][0]["code"], "index", "{found}");
    assert_eq!(found["items"].as_array().unwrap().len(), 1, "{found}");
    let verify = site.elf(&["verify"]).await.exits(1);
    verify.says(&[&pid, "is it stopped?"]);
    let status = site.json(&["status"]).await;
    let told = status["collection"]["error"].as_str().unwrap();
    assert!(told.contains(&pid), "{told}");

    worker.signal("CONT").await;
    let found = site.json(&["search", "zebra"]).await;
    assert_eq!(found["degraded"], serde_json::json!([]));
    worker.stop().await.exits(0);
}

/// A worker whose index does not answer pauses, and no attempt counts.
#[tokio::test]
async fn a_stopped_process_costs_another_worker_no_attempt() {
    let site = Site::start().await;
    site.configure("[storage.qdrant]", "[storage.qdrant]\ntimeout_ms = 500");
    let first = site.worker();
    first.says("worker started").await;
    let second = site.worker();
    second.says("worker started").await;
    first.signal("STOP").await;
    write(&site, 20).await;
    second.says("is it stopped?").await;
    let mut db = site.connect().await;
    let attempts = "select coalesce(max(attempts), 0) from indexing_outbox";
    let attempts: i32 = sqlx::query_scalar(attempts)
        .fetch_one(&mut db)
        .await
        .unwrap();
    assert_eq!(attempts, 0);
    db.close().await.unwrap();
    first.kill().await;
    indexed(&site, 20).await;
    second.stop().await.exits(0);
    site.elf(&["verify", "--deep"]).await.exits(0);
}
