//! The admin port: readiness, its JSON, dead letters.

mod auth;
mod start;
mod systemd;

use reqwest::{Client, Method, StatusCode};
use serde_json::{Value, json};

use crate::support::embedding_server::Behaviour;
use crate::support::eventually;
use crate::support::site::{Running, Site};

const TOKEN: &str = "a-token-for-the-tests";

/// An admin port, and requests to it.
struct Admin {
    url: String,
    token: Option<&'static str>,
}

impl Admin {
    async fn of(worker: &Running) -> Self {
        Self {
            url: worker.admin().await,
            token: None,
        }
    }

    async fn ask(&self, method: Method, path: &str, body: Option<Value>) -> (StatusCode, Value) {
        let url = format!("{}{path}", self.url);
        let mut request = Client::new().request(method, url);
        if let Some(token) = self.token {
            request = request.bearer_auth(token);
        }
        if let Some(body) = body {
            request = request.json(&body);
        }
        let answer = request.send().await.unwrap();
        let status = answer.status();
        (status, answer.json().await.unwrap_or_default())
    }

    async fn get(&self, path: &str) -> (StatusCode, Value) {
        self.ask(Method::GET, path, None).await
    }

    async fn post(&self, path: &str, body: Value) -> (StatusCode, Value) {
        self.ask(Method::POST, path, Some(body)).await
    }

    /// The check of that name, and whether all of them hold.
    async fn check(&self, name: &str) -> (bool, Value) {
        let (status, body) = self.get("/readyz").await;
        assert_eq!(body["ready"], status == StatusCode::OK, "{body}");
        let checks = body["checks"].as_array().unwrap();
        let check = checks.iter().find(|check| check["name"] == name).unwrap();
        (status == StatusCode::OK, check.clone())
    }

    /// Waits until the check of that name fails, and gives it.
    async fn fails(&self, name: &str) -> Value {
        eventually(async || self.check(name).await.1["ok"] == false).await;
        self.check(name).await.1
    }

    async fn is_ready(&self) {
        eventually(async || self.get("/readyz").await.0 == StatusCode::OK).await;
    }
}

fn with_token(site: &Site) {
    let key = format!("[service]\nadmin_token = \"{TOKEN}\"");
    site.configure("[service]", &key);
}

/// A site with a token and a worker that has dead-lettered one note.
async fn with_a_dead_letter(text: &str) -> (Site, Running, Admin) {
    let site = Site::start().await;
    with_token(&site);
    site.provider.poison("poison", Behaviour::Status(400));
    site.note(text).await;
    let worker = site.worker();
    let mut admin = Admin::of(&worker).await;
    admin.token = Some(TOKEN);
    worker.says("note dead-lettered").await;
    (site, worker, admin)
}

#[tokio::test]
async fn readyz_says_what_fails_and_since_when() {
    let (site, line) = Site::start().await.behind_a_proxy().await;
    let worker = site.worker();
    worker.says("worker started").await;
    let admin = Admin::of(&worker).await;
    admin.is_ready().await;

    line.cut();
    let first = admin.fails("postgres").await;
    admin.fails("worker").await;
    let again = admin.fails("postgres").await;
    assert_eq!(first["since"], again["since"]);
    let (_, alias) = admin.check("alias").await;
    assert_eq!(alias["ok"], true, "nothing is known to be wrong with it");
    line.restore();
    admin.is_ready().await;
    let (_, recovered) = admin.check("postgres").await;
    assert!(recovered["since"].as_str() > first["since"].as_str());
    assert_eq!(recovered.get("reason"), None);

    let mut db = site.connect().await;
    sqlx::query("update elf_schema set oldest_program = 9999")
        .execute(&mut db)
        .await
        .unwrap();
    sqlx::query("insert into elf_migrations (version, description, success, checksum, execution_time) values (9999, 'later', true, '', 0)")
        .execute(&mut db)
        .await
        .unwrap();
    let schema = admin.fails("schema").await;
    assert!(schema["reason"].as_str().unwrap().contains("upgrade elf"));
    sqlx::query("delete from elf_migrations where version = 9999")
        .execute(&mut db)
        .await
        .unwrap();
    admin.is_ready().await;

    site.provider.always(Behaviour::Status(401));
    site.note("nobody lets it in").await;
    admin.fails("config").await;
    admin.fails("provider").await;
    assert_eq!(admin.check("postgres").await.1["ok"], true);
    worker.kill().await;
}

#[tokio::test]
async fn readyz_says_where_the_alias_points() {
    let site = Site::start().await;
    let server = crate::support::qdrant::Qdrant::start("readyz_says_where_the_alias_points").await;
    let Some(server) = server else { return };
    site.use_server(&server.url());
    let worker = site.worker();
    worker.says("worker started").await;
    let admin = Admin::of(&worker).await;
    admin.is_ready().await;
    let collection = format!("{}/collections/notes__1", server.rest());
    let dropped = Client::new().delete(collection).send().await.unwrap();
    assert!(dropped.status().is_success());
    let alias = admin.fails("alias").await;
    assert!(
        alias["reason"]
            .as_str()
            .unwrap()
            .contains("points at nothing"),
        "{alias}"
    );
    assert_eq!(admin.check("index").await.1["ok"], true);
    worker.kill().await;
}

#[tokio::test]
async fn the_status_tells_what_a_page_shows() {
    let (site, worker, admin) = with_a_dead_letter("poison for one").await;
    site.note("and a good one").await;
    eventually(async || {
        let (_, status) = admin.get("/api/status").await;
        status["worker"]["points"] == 1
            && status["outbox"]["dead"] == 1
            && status["notes"]["live"].is_number()
    })
    .await;
    let (_, status) = admin.get("/api/status").await;
    assert_eq!(status["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(status["alias"], "notes");
    assert_eq!(status["can_change"], true);
    assert_eq!(status["provider"]["state"], "closed");
    assert_eq!(status["collections"][0]["name"], "notes__1");
    assert_eq!(status["collections"][0]["served"], true);
    assert_eq!(status["versions"][0]["state"], "active");
    assert_eq!(status["worker"]["dead"], 1);
    assert_eq!(status["job"], Value::Null);
    assert!(status["outbox"]["size_bytes"].as_u64().unwrap() > 0);
    assert!(status["history"]["interval_secs"].as_u64().unwrap() > 0);
    worker.stop().await.exits(0);
}

#[tokio::test]
async fn the_status_follows_a_rebuild_in_another_process() {
    let site = Site::start().await;
    let worker = site.worker();
    worker.says("worker started").await;
    let admin = Admin::of(&worker).await;
    let mut db = site.connect().await;
    let lives = |lease: &str| {
        format!(
            "insert into index_job (kind, subject, holder, lease_until, done, total)
             values ('rebuild', 'notes', 'elsewhere:1', now() + interval '{lease}', 250, 1000)"
        )
    };
    sqlx::query(sqlx::AssertSqlSafe(lives("1 hour")))
        .execute(&mut db)
        .await
        .unwrap();
    eventually(async || {
        let (_, status) = admin.get("/api/status").await;
        let job = &status["job"];
        job["holder"] == "elsewhere:1" && job["total"] == 1000 && job["rate_per_sec"] == 0.0
    })
    .await;
    let metrics = reqwest::get(format!("{}/metrics", admin.url))
        .await
        .unwrap();
    let metrics = metrics.text().await.unwrap();
    for line in [
        "elf_job_running{kind=\"rebuild\"} 1",
        "elf_job_items_done{kind=\"rebuild\"} 250",
        "elf_job_running{kind=\"reindex\"} 0",
    ] {
        assert!(metrics.contains(line), "{line} is not in {metrics}");
    }
    sqlx::query("delete from index_job")
        .execute(&mut db)
        .await
        .unwrap();
    eventually(async || admin.get("/api/status").await.1["job"].is_null()).await;
    worker.stop().await.exits(0);
}

#[tokio::test]
async fn dead_letters_are_shown_retried_and_discarded() {
    let (site, worker, admin) = with_a_dead_letter("poison <b>bold</b>").await;
    let (status, body) = admin.get("/api/dead").await;
    assert_eq!(status, StatusCode::OK, "{body}");
    assert_eq!(body["total"], 1);
    let letter = &body["items"][0];
    assert_eq!(letter["reason"], "provider");
    assert_eq!(letter["text_preview"], "poison <b>bold</b>");
    assert_eq!(letter["attempts"], 3);
    let id = letter["outbox_id"].clone();

    // The text is still poison: the worker tried it again and dead-lettered it again.
    let (_, retried) = admin.post("/api/dead/retry", json!({ "ids": [id] })).await;
    assert_eq!(retried, json!({ "retried": 1 }));
    worker.says("retried from the admin page").await;
    eventually(async || admin.get("/api/dead").await.1["total"] == 1).await;
    site.provider.heal();
    site.provider.poison("nothing", Behaviour::Embed);
    let (_, retried) = admin.post("/api/dead/retry", json!({ "all": true })).await;
    assert_eq!(retried, json!({ "retried": 1 }));
    eventually(async || admin.get("/api/status").await.1["worker"]["points"] != 0).await;

    site.provider.poison("arsenic", Behaviour::Status(400));
    let note = site.note("arsenic").await;
    eventually(async || admin.get("/api/dead").await.1["total"] == 1).await;
    let (_, body) = admin.get("/api/dead").await;
    let id = body["items"][0]["outbox_id"].clone();
    let (_, discarded) = admin
        .post("/api/dead/discard", json!({ "ids": [id] }))
        .await;
    assert_eq!(discarded, json!({ "discarded": 1 }));
    let line = worker.says("discarded from the admin page").await;
    assert!(
        line.contains(id.as_str().unwrap()) && line.contains("127.0.0.1"),
        "{line}"
    );
    assert_eq!(admin.get("/api/dead").await.1["total"], 0);
    let stays: bool =
        sqlx::query_scalar("select exists (select from memory_notes where note_id = $1)")
            .bind(note)
            .fetch_one(&mut site.connect().await)
            .await
            .unwrap();
    assert!(stays);

    for (path, body) in [
        ("/api/dead/discard", json!({ "all": true })),
        ("/api/dead/discard", json!({ "ids": [] })),
        ("/api/dead/retry", json!({})),
        ("/api/dead/retry", json!({ "ids": [id], "all": true })),
        ("/api/dead/retry", json!({ "ids": ["no id"] })),
    ] {
        let (status, answer) = admin.post(path, body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{answer}");
        assert!(answer["error"].is_string());
    }
    worker.stop().await.exits(0);
}
