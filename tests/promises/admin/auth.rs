//! Who may ask the admin port, and what it answers to others.

use reqwest::{Client, StatusCode};
use serde_json::json;

use super::{Admin, TOKEN, with_a_dead_letter, with_token};
use crate::support::eventually;
use crate::support::site::Site;

#[tokio::test]
async fn without_its_token_nothing_is_shown_or_changed() {
    let (_site, worker, mut admin) = with_a_dead_letter("poison for one").await;
    for token in [None, Some("a-token-of-somebody-else")] {
        admin.token = token;
        for path in ["/api/status", "/api/dead"] {
            assert_eq!(admin.get(path).await.0, StatusCode::UNAUTHORIZED);
        }
        let (status, answer) = admin.post("/api/dead/retry", json!({ "all": true })).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED);
        assert!(answer["error"].as_str().unwrap().contains("admin_token"));
    }
    // A page of another site cannot, even with the token.
    let foreign = Client::new()
        .post(format!("{}/api/dead/retry", admin.url))
        .bearer_auth(TOKEN)
        .header("origin", "https://evil.example")
        .json(&json!({ "all": true }));
    assert_eq!(
        foreign.send().await.unwrap().status(),
        StatusCode::FORBIDDEN
    );
    admin.token = Some(TOKEN);
    assert_eq!(admin.get("/api/dead").await.1["total"], 1);
    for path in ["/", "/livez", "/readyz", "/metrics"] {
        let open = reqwest::get(format!("{}{path}", admin.url)).await.unwrap();
        assert_eq!(open.status(), StatusCode::OK, "{path} takes no token");
    }
    worker.stop().await.exits(0);
}

#[tokio::test]
async fn without_a_token_of_its_own_the_port_answers_this_machine_and_changes_nothing() {
    let site = Site::start().await;
    let worker = site.worker();
    worker.says("worker started").await;
    let admin = Admin::of(&worker).await;
    assert_eq!(admin.get("/api/status").await.1["can_change"], false);
    let (status, answer) = admin.post("/api/dead/retry", json!({ "all": true })).await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    assert!(
        answer["error"]
            .as_str()
            .unwrap()
            .contains("service.admin_token")
    );
    // DNS rebinding: a name of another site that resolves to this machine.
    let rebound = Client::new()
        .get(format!("{}/api/dead", admin.url))
        .header("host", "evil.example");
    assert_eq!(
        rebound.send().await.unwrap().status(),
        StatusCode::FORBIDDEN
    );
    worker.stop().await.exits(0);
}

#[tokio::test]
async fn a_port_that_others_can_reach_takes_a_token() {
    let site = Site::start().await;
    site.configure("127.0.0.1:0", "0.0.0.0:0");
    site.elf(&["worker"])
        .await
        .exits(78)
        .says(&["admin_token", "127.0.0.1"]);
    with_token(&site);
    let worker = site.worker();
    worker.says("worker started").await;
    worker.stop().await.exits(0);
    site.configure(TOKEN, "short");
    site.elf(&["config", "check"])
        .await
        .exits(78)
        .says(&["16 characters"]);
}

#[tokio::test]
async fn audit_lines_are_written_at_every_log_level() {
    let site = Site::start().await;
    with_token(&site);
    // Of all other lines, only the one with the address of the port.
    site.configure(
        "log_level = \"debug\"",
        "log_level = \"elf::cli::admin_port=info\"",
    );
    let worker = site.worker();
    let mut admin = Admin::of(&worker).await;
    admin.token = Some(TOKEN);
    worker.says("address=").await;
    let all = json!({ "all": true });
    eventually(async || admin.post("/api/dead/retry", all.clone()).await.0 == StatusCode::OK).await;
    worker.says("retried from the admin page").await;
    worker.stop().await.exits(0);
}

#[tokio::test]
async fn every_answer_forbids_scripts_of_others() {
    let site = Site::start().await;
    let worker = site.worker();
    let url = worker.admin().await;
    for path in [
        "/",
        "/app.js",
        "/style.css",
        "/api/status",
        "/readyz",
        "/nowhere",
    ] {
        let answer = reqwest::get(format!("{url}{path}")).await.unwrap();
        let policy = answer.headers()["content-security-policy"]
            .to_str()
            .unwrap();
        assert!(policy.starts_with("default-src 'none'"), "{path}: {policy}");
        assert!(!policy.contains("unsafe"), "{path}: {policy}");
        assert_eq!(answer.headers()["x-content-type-options"], "nosniff");
    }
    worker.stop().await.exits(0);
}

/// A name of another site that resolves to this machine (DNS rebinding) is refused on every
/// path.
#[tokio::test]
async fn a_foreign_name_is_refused_on_every_path() {
    let site = Site::start().await;
    let worker = site.worker();
    let admin = Admin::of(&worker).await;
    for path in [
        "/",
        "/app.js",
        "/metrics",
        "/livez",
        "/readyz",
        "/api/status",
        "/api/dead",
    ] {
        let asked = Client::new()
            .get(format!("{}{path}", admin.url))
            .header("host", "evil.example");
        let status = asked.send().await.unwrap().status();
        assert_eq!(status, StatusCode::FORBIDDEN, "{path}");
        assert_ne!(admin.get(path).await.0, StatusCode::FORBIDDEN, "{path}");
    }
    worker.stop().await.exits(0);
}

#[tokio::test]
async fn a_wrong_token_is_in_the_log() {
    let site = Site::start().await;
    with_token(&site);
    let worker = site.worker();
    let mut admin = Admin::of(&worker).await;
    admin.get("/api/status").await;
    admin.token = Some("a-token-of-somebody-else");
    admin.get("/api/dead").await;
    let line = worker.says("wrong admin token refused").await;
    for word in ["elf::audit", "127.0.0.1", "/api/dead"] {
        assert!(line.contains(word), "{line}");
    }
    assert!(!worker.log().contains("somebody-else"), "{}", worker.log());
    assert_eq!(worker.log().matches("wrong admin token").count(), 1);
    worker.stop().await.exits(0);
}

/// Connections that send nothing, or never end a request, are closed. Others are answered
/// then.
#[tokio::test]
async fn silent_connections_do_not_keep_others_out() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let site = Site::start().await;
    let worker = site.worker();
    let admin = Admin::of(&worker).await;
    let address = admin.url.trim_start_matches("http://").to_owned();
    let mut silent = Vec::new();
    for i in 0..200 {
        let mut connection = tokio::net::TcpStream::connect(&address).await.unwrap();
        if i % 2 == 0 {
            let unfinished = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n";
            connection.write_all(unfinished).await.unwrap();
        }
        silent.push(connection);
    }
    assert_eq!(admin.get("/livez").await.0, StatusCode::OK);
    // The first of them were closed without an answer.
    let mut rest = Vec::new();
    let _ = silent[0].read_to_end(&mut rest).await;
    assert!(!String::from_utf8_lossy(&rest).contains("200 OK"));
    worker.stop().await.exits(0);
}
