//! The admin port: readiness, its JSON, and its access rules.

use reqwest::{Client, Method, StatusCode};
use serde_json::{Value, json};
use tokio::net::UnixDatagram;

use crate::support::embedding_server::Behaviour;
use crate::support::eventually;
use crate::support::proxy::Proxy;
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
async fn a_worker_waits_for_an_unavailable_postgres_when_it_starts() {
    let (site, line) = Site::behind_a_line().await;
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

#[tokio::test]
async fn readyz_says_what_fails_and_since_when() {
    let (site, line) = Site::behind_a_line().await;
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

/// The socket on which systemd receives a service's messages.
struct Systemd {
    socket: UnixDatagram,
    path: std::path::PathBuf,
}

impl Systemd {
    fn of(site: &Site) -> Self {
        let path = site.path("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        Self { socket, path }
    }

    /// Starts a worker that is to show a sign of life every 400 ms.
    fn worker(&self, site: &Site) -> Running {
        let socket = self.path.to_str().unwrap();
        site.worker_with(&[("NOTIFY_SOCKET", socket), ("WATCHDOG_USEC", "400000")])
    }

    /// Waits for a message with `word` in it, and gives it.
    async fn hears(&self, word: &str) -> String {
        let mut message = [0; 4096];
        let wait = async {
            loop {
                let length = self.socket.recv(&mut message).await.unwrap();
                let text = String::from_utf8_lossy(&message[..length]).into_owned();
                if text.contains(word) {
                    return text;
                }
            }
        };
        tokio::time::timeout(crate::support::DEADLINE, wait)
            .await
            .unwrap_or_else(|_| panic!("it never heard {word:?}"))
    }
}

#[tokio::test]
async fn systemd_is_told_of_the_start_the_work_and_the_stop() {
    let site = Site::start().await;
    let systemd = Systemd::of(&site);
    let worker = systemd.worker(&site);
    assert!(systemd.hears("READY=1").await.contains("STATUS=working"));
    systemd.hears("WATCHDOG=1").await;
    systemd.hears("STATUS=ready: 0 pending").await;
    site.provider.always(Behaviour::Status(503));
    site.note("waits").await;
    let status = systemd.hears("STATUS=not ready").await;
    assert!(status.contains("provider"), "{status}");
    // A paused worker still sends signs of life.
    systemd.hears("WATCHDOG=1").await;
    worker.signal("TERM").await;
    systemd.hears("STOPPING=1").await;
    worker.ended().await.exits(0);
}

#[tokio::test]
async fn systemd_neither_waits_for_an_unavailable_store_nor_kills_a_worker_that_does() {
    let (site, line) = Site::behind_a_line().await;
    line.cut();
    let systemd = Systemd::of(&site);
    let worker = systemd.worker(&site);
    let ready = systemd.hears("READY=1").await;
    assert!(ready.contains("STATUS=waiting:"), "{ready}");
    systemd.hears("WATCHDOG=1").await;
    systemd.hears("WATCHDOG=1").await;
    worker.kill().await;
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
