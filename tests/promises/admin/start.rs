//! What a worker waits for when it starts, and what its port says meanwhile.

use reqwest::StatusCode;
use serde_json::Value;

use super::Admin;
use crate::support::embedding_server::Behaviour;
use crate::support::proxy::Proxy;
use crate::support::site::Site;

#[tokio::test]
async fn a_worker_waits_for_an_unavailable_postgres_when_it_starts() {
    let (site, line) = Site::start().await.behind_a_proxy().await;
    line.cut();
    let worker = site.worker();
    let admin = Admin::of(&worker).await;
    worker.says("waiting to start").await;
    let check = admin.fails("postgres").await;
    let reason = check["reason"].as_str().unwrap();
    assert!(reason.contains("storage.postgres.dsn"), "{reason}");
    let (status, body) = admin.get("/api/dead").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{body}");
    assert_eq!(admin.get("/api/status").await.1["worker"], Value::Null);

    line.restore();
    worker.says("worker started").await;
    admin.is_ready().await;
    worker.stop().await.exits(0);
}

#[tokio::test]
async fn a_worker_waits_for_an_unavailable_provider_when_it_starts() {
    let site = Site::start().await;
    site.provider.always(Behaviour::Status(503));
    let worker = site.worker();
    let admin = Admin::of(&worker).await;
    worker.says("waiting to start").await;
    let check = admin.fails("provider").await;
    assert!(check["reason"].as_str().unwrap().contains("503"), "{check}");
    site.provider.heal();
    worker.says("worker started").await;
    worker.stop().await.exits(0);
}

#[tokio::test]
async fn a_worker_waits_for_an_unavailable_qdrant_when_it_starts_and_stops_when_told() {
    let site = Site::start().await;
    // No process listens on a port that was just closed.
    let port = Proxy::to("127.0.0.1", 1).await.port();
    site.use_server(&format!("http://127.0.0.1:{port}"));
    let worker = site.worker();
    let admin = Admin::of(&worker).await;
    worker.says("waiting to start").await;
    admin.fails("index").await;
    worker.stop().await.exits(0);
    // `--once` is for scripts: it fails instead of waiting.
    site.elf(&["worker", "--once"]).await.exits(1);
}

#[tokio::test]
async fn a_worker_waits_for_an_unavailable_hub_when_it_starts() {
    let site = Site::start().await;
    let folder = crate::support::harness::model().display().to_string();
    site.configure(&folder, "org/model");
    let hub = Proxy::to("127.0.0.1", 1).await.port();
    let (hub, cache) = (format!("http://127.0.0.1:{hub}"), site.path("cache"));
    let variables = [
        ("HF_ENDPOINT", hub.as_str()),
        ("HF_HOME", cache.to_str().unwrap()),
    ];
    let worker = site.worker_with(&variables);
    let admin = Admin::of(&worker).await;
    worker.says("waiting to start").await;
    let check = admin.fails("config").await;
    let reason = check["reason"].as_str().unwrap();
    assert!(
        reason.contains(&hub) && reason.contains("HF_ENDPOINT"),
        "{reason}"
    );
    worker.stop().await.exits(0);
}

#[tokio::test]
async fn a_worker_waits_for_the_migration() {
    let site = Site::empty().await;
    let worker = site.worker();
    let admin = Admin::of(&worker).await;
    worker.says("waiting to start").await;
    let check = admin.fails("schema").await;
    assert!(
        check["reason"].as_str().unwrap().contains("elf migrate"),
        "{check}"
    );
    let url = format!("{}/metrics", admin.url);
    let metrics = reqwest::get(url).await.unwrap().text().await.unwrap();
    for line in [
        "elf_ready 0",
        "elf_check_ok{check=\"schema\"} 0",
        "elf_check_ok{check=\"postgres\"} NaN",
        "elf_commit_to_searchable_seconds_count 0",
    ] {
        assert!(metrics.contains(&format!("{line}\n")), "{line}: {metrics}");
    }
    site.elf(&["migrate"]).await.exits(0);
    worker.says("worker started").await;
    admin.is_ready().await;
    worker.stop().await.exits(0);
}

#[tokio::test]
async fn a_worker_migrates_if_asked_once_postgres_is_there() {
    let site = Site::empty().await;
    let (host, port) = site.database.server();
    let line = Proxy::to(host, port).await;
    let through = site.database.url_through(line.port());
    site.configure(&site.database.url(), &through);
    line.cut();
    let worker = site.begin(&["worker", "--migrate", "--json"]);
    Admin::of(&worker).await.fails("postgres").await;
    line.restore();
    worker.says("worker started").await;
    worker.stop().await.exits(0);
    // A second start, with nothing to migrate, succeeds too.
    site.elf(&["worker", "--once", "--migrate"]).await.exits(0);
}
