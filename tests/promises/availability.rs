//! A client is never another's outage: what one takes of connections, memory and Postgres leaves
//! enough for others, and health answers always.

use std::net::SocketAddr;
use std::time::Duration;

use futures::future::join_all;
use reqwest::{Method, StatusCode};
use serde_json::json;
use sqlx::Connection;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::support::api::{Served, url};
use crate::support::eventually;
use crate::support::site::{Running, Site};

/// Far longer than any answer takes here, and shorter than what another client holds.
const SOON: Duration = Duration::from_secs(4);

/// A worker that serves both ports, and may open so many files.
async fn served_with_files(most: u32) -> Served {
    let site = Site::start().await;
    site.configure("[service]\n", "[service]\nhttp_bind = \"127.0.0.1:0\"\n");
    let worker = site.begin_with_files(most, &["worker"]);
    let url = url(&worker).await;
    Served { site, worker, url }
}

fn address(url: &str) -> SocketAddr {
    url.strip_prefix("http://").unwrap().parse().unwrap()
}

/// Opens connections, sends the same on each, and keeps them.
async fn flood(url: &str, connections: usize, sent: &[u8]) -> Vec<TcpStream> {
    let mut held = Vec::new();
    for _ in 0..connections {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        let Ok(Ok(mut stream)) = tokio::time::timeout(SOON, socket.connect(address(url))).await
        else {
            continue;
        };
        // The server may have closed it, or reads no more.
        let _ = tokio::time::timeout(SOON, stream.write_all(sent)).await;
        held.push(stream);
    }
    held
}

/// The status of an answer that comes soon.
async fn status(url: &str, secret: &str) -> StatusCode {
    let asking = reqwest::Client::new().get(url).bearer_auth(secret).send();
    let answered = tokio::time::timeout(SOON, asking).await;
    let answered = answered.unwrap_or_else(|_| panic!("no answer of {url} within {SOON:?}"));
    answered.unwrap().status()
}

/// A line of `/proc/PID/status`, in megabytes.
fn megabytes(process: &Running, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let value = line.unwrap().trim_start_matches(':').trim();
    value.split(' ').next().unwrap().parse::<u64>().unwrap() / 1024
}

/// How many megabytes the process has had at most since `then`.
fn grown(process: &Running, then: u64) -> u64 {
    megabytes(process, "VmHWM").saturating_sub(then)
}

#[tokio::test]
async fn connections_without_a_key_end_neither_port() {
    let served = served_with_files(256).await;
    let secret = served.key(&["--tenant", "t", "--write"]).await;
    let note = served.add(&secret, "The zebra sleeps.").await;
    let admin = served.worker.admin().await;
    let described = "GET /openapi.json HTTP/1.1\r\nhost: elf\r\n\r\n".repeat(500);
    let mut held = Vec::new();
    for sent in [
        "",
        "GET /livez HTTP/1.1\r\nhost: ",
        "GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n",
        "POST /v2/notes HTTP/1.1\r\nhost: elf\r\ncontent-length: 9\r\n\r\n",
        "POST /api/dead/retry HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n1",
        // Each answer stays in memory until it is read.
        &described,
    ] {
        for port in [&served.url, &admin] {
            held.push(flood(port, 300, sent.as_bytes()).await);
        }
        for healthy in [
            format!("{admin}/livez"),
            format!("{admin}/readyz"),
            format!("{admin}/metrics"),
            format!("{}/livez", served.url),
            format!("{}/readyz", served.url),
            format!("{}/v2/notes/{note}", served.url),
        ] {
            assert_eq!(status(&healthy, &secret).await, 200, "{healthy}");
        }
    }
    // And the worker has descriptors for its own.
    served.add(&secret, "The zebra wakes.").await;
    assert!(refused(&admin, "connection").await > 0.0);
    served.worker.stop().await.exits(0);
}

/// `elf_http_refused_total` of a reason.
async fn refused(admin: &str, reason: &str) -> f64 {
    let metrics = reqwest::get(format!("{admin}/metrics")).await.unwrap();
    let metrics = metrics.text().await.unwrap();
    let of = format!("elf_http_refused_total{{reason=\"{reason}\"}} ");
    let line = metrics.lines().find_map(|line| line.strip_prefix(&*of));
    line.unwrap_or_else(|| panic!("{of} is not in {metrics}"))
        .parse()
        .unwrap()
}

#[tokio::test]
async fn requests_of_the_page_that_wait_for_postgres_leave_health_its_connections() {
    let served = Served::start().await;
    let admin = served.worker.admin().await;
    let mut other = served.site.connect().await;
    let mut lock = other.begin().await.unwrap();
    sqlx::query("lock table indexing_outbox in access exclusive mode")
        .execute(&mut *lock)
        .await
        .unwrap();
    let held = flood(
        &admin,
        100,
        b"GET /api/dead HTTP/1.1\r\nhost: localhost\r\n\r\n",
    )
    .await;
    for path in ["livez", "metrics"] {
        assert_eq!(status(&format!("{admin}/{path}"), "").await, 200);
    }
    drop((held, lock));
}

#[tokio::test]
async fn heads_that_never_end_take_little_memory() {
    let served = Served::start().await;
    let before = megabytes(&served.worker, "VmHWM");
    let mut head = b"GET /v2/searches HTTP/1.1\r\nhost: elf\r\nx: ".to_vec();
    head.resize(405 << 10, b'x');
    let query = format!("GET /v2/searches?{}", "q".repeat(405 << 10)).into_bytes();
    let mut many = b"GET /v2/searches HTTP/1.1\r\n".to_vec();
    many.extend((0..20_000).flat_map(|n| format!("x-{n}: 1\r\n").into_bytes()));
    let mut held = Vec::new();
    for sent in [head, query, many] {
        let floods = (0..10).map(|_| flood(&served.url, 40, &sent));
        held.extend(join_all(floods).await);
    }
    assert_eq!(status(&format!("{}/livez", served.url), "").await, 200);
    let grown = grown(&served.worker, before);
    assert!(grown < 100, "{grown} MB");
}

#[tokio::test]
async fn slow_readers_of_long_notes_hold_little_memory_and_are_cut() {
    let served = Served::start().await;
    let bound = served.key(&["--tenant", "t", "--agent", "a"]).await;
    let same_tenant = served.key(&["--tenant", "t"]).await;
    let other = served.key(&["--tenant", "u", "--write"]).await;
    served.worker.stop().await.exits(0);
    let alone = served.site.begin(&["serve"]);
    let url = url(&alone).await;
    let long = served.site.note(&"zebra ".repeat(3 << 20)).await;
    let short = served.site.note("The zebra sleeps.").await;
    let before = megabytes(&alone, "VmHWM");
    let head = format!("host: elf\r\nauthorization: Bearer {bound}\r\n");
    let call = json!({
        "jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": { "name": "get_note", "arguments": { "note_id": long } },
    })
    .to_string();
    let requests = [
        format!("GET /v2/notes/{long} HTTP/1.1\r\n{head}\r\n"),
        format!("GET /v2/notes/{long}/chunks HTTP/1.1\r\n{head}\r\n"),
        format!(
            "POST /mcp HTTP/1.1\r\n{head}accept: application/json, text/event-stream\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{call}",
            call.len()
        ),
    ];
    let mut held = Vec::new();
    for request in &requests {
        held.push(flood(&url, 40, request.as_bytes()).await);
    }
    let path = format!("{url}/v2/notes/{short}");
    assert_eq!(status(&path, &same_tenant).await, 200);
    assert_eq!(status(&path, &other).await, 404, "it is another's");
    let grown = grown(&alone, before);
    assert!(grown < 300, "{grown} MB");
    // They are cut, and the key has its places again.
    eventually(async || {
        tokio::time::sleep(Duration::from_millis(100)).await;
        status(&path, &bound).await == 200
    })
    .await;
    let mut cut = 0;
    for stream in held.iter_mut().flatten() {
        let mut rest = Vec::new();
        let read = tokio::time::timeout(SOON, stream.read_to_end(&mut rest)).await;
        cut += usize::from(matches!(read, Ok(Err(_))) || !rest.ends_with(b"0\r\n\r\n"));
    }
    assert!(cut > 0);
}

#[tokio::test]
async fn bodies_of_many_requests_hold_little_memory() {
    let served = Served::start().await;
    let writer = served.key(&["--tenant", "t", "--write"]).await;
    let same_tenant = served.key(&["--tenant", "t", "--write"]).await;
    let other = served.key(&["--tenant", "u", "--write"]).await;
    let before = megabytes(&served.worker, "VmHWM");
    let head =
        format!("POST /v2/notes HTTP/1.1\r\nhost: elf\r\nauthorization: Bearer {writer}\r\n");
    let most = 32 << 20;
    let announced =
        format!("{head}content-type: application/json\r\ncontent-length: {most}\r\n\r\n");
    let chunked = format!(
        "{head}content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n{most:x}\r\n"
    );
    let mut held = Vec::new();
    for head in [announced, chunked] {
        let mut sent = head.into_bytes();
        // All but the end.
        sent.resize(sent.len() + (24 << 20), b' ');
        let floods = (0..10).map(|_| flood(&served.url, 5, &sent));
        held.extend(join_all(floods).await);
        for secret in [&same_tenant, &other] {
            served.add(secret, "The zebra sleeps.").await;
        }
    }
    let grown = grown(&served.worker, before);
    assert!(grown < 400, "{grown} MB");
}

#[tokio::test]
async fn a_body_of_many_small_values_is_refused_before_all_are_parsed() {
    let served = Served::start().await;
    let writer = served.key(&["--tenant", "t", "--write"]).await;
    let before = megabytes(&served.worker, "VmHWM");
    let note = json!({"text": "", "scope": "", "type": ""}).to_string();
    let notes = vec![note; 700_000].join(",");
    let answered = reqwest::Client::new()
        .post(format!("{}/v2/notes", served.url))
        .bearer_auth(&writer)
        .header("content-type", "application/json")
        .body(format!("{{\"notes\":[{notes}]}}"))
        .send()
        .await
        .unwrap();
    assert_eq!(answered.status(), 422);
    let grown = grown(&served.worker, before);
    assert!(grown < 100, "{grown} MB");
}

/// Sends 32 requests of one key that each wait in Postgres, and meanwhile reads and writes with
/// another tenant's.
async fn others_are_served(
    served: &Served,
    asked: reqwest::RequestBuilder,
    note_of_other: &str,
    other: &str,
) {
    let asking = join_all((0..32).map(|_| asked.try_clone().unwrap().send()));
    let meanwhile = async {
        // Until they hold what they can: at least one connection.
        let mut database = served.site.connect().await;
        loop {
            let waiting: i64 = sqlx::query_scalar(
                "select count(*) from pg_stat_activity
                  where datname = current_database() and wait_event_type = 'Lock'",
            )
            .fetch_one(&mut database)
            .await
            .unwrap();
            if waiting >= 1 {
                break;
            }
        }
        for _ in 0..20 {
            let path = format!("{}/v2/notes/{note_of_other}", served.url);
            assert_eq!(status(&path, other).await, 200);
        }
        let path = format!("{}/v2/notes/{note_of_other}", served.url);
        let change = reqwest::Client::new()
            .patch(path)
            .bearer_auth(other)
            .json(&json!({"importance": 0.7}))
            .send();
        let changed = tokio::time::timeout(SOON, change).await.unwrap().unwrap();
        assert_eq!(changed.status(), 200);
    };
    let (answered, ()) = tokio::join!(asking, meanwhile);
    for answered in answered {
        let answered = answered.unwrap();
        let is_told = answered.headers().contains_key("retry-after");
        assert!(answered.status() == 200 || is_told, "{answered:?}");
    }
}

#[tokio::test]
async fn comparisons_that_take_long_leave_connections() {
    let served = Served::start().await;
    let secret = served.key(&["--tenant", "t", "--write"]).await;
    let reader = served.key(&["--tenant", "t"]).await;
    let other = served.key(&["--tenant", "u", "--write"]).await;
    let note = served.add(&secret, "The zebra sleeps.").await;
    let note_of_other = served.add(&other, "The okapi sleeps.").await;
    let mut database = served.site.connect().await;
    let mut lock = database.begin().await.unwrap();
    sqlx::query("lock table note_embeddings in access exclusive mode")
        .execute(&mut *lock)
        .await
        .unwrap();
    let asked = reqwest::Client::new()
        .post(format!("{}/v2/notes:find_duplicates", served.url))
        .bearer_auth(&reader)
        .json(&json!({ "note_id": note }));
    others_are_served(&served, asked, &note_of_other, &other).await;
}

#[tokio::test]
async fn writes_that_wait_for_one_note_leave_connections() {
    let served = Served::start().await;
    let secret = served.key(&["--tenant", "t", "--write"]).await;
    let other = served.key(&["--tenant", "u", "--write"]).await;
    let note = served.add(&secret, "The zebra sleeps.").await;
    let note_of_other = served.add(&other, "The okapi sleeps.").await;
    let mut application = served.site.connect().await;
    let mut held = application.begin().await.unwrap();
    sqlx::query("select from memory_notes where note_id = $1::uuid for update")
        .bind(&note)
        .execute(&mut *held)
        .await
        .unwrap();
    let asked = reqwest::Client::new()
        .patch(format!("{}/v2/notes/{note}", served.url))
        .bearer_auth(&secret)
        .json(&json!({ "text": "zebra ".repeat(700_000) }));
    others_are_served(&served, asked, &note_of_other, &other).await;
}

#[tokio::test]
async fn records_of_one_tenant_leave_room_for_those_of_another() {
    let served = Served::start().await;
    let secret = served.key(&["--tenant", "t", "--write"]).await;
    let other = served.key(&["--tenant", "u", "--write"]).await;
    served.add(&secret, "The zebra sleeps.").await;
    let mut database = served.site.connect().await;
    let mut lock = database.begin().await.unwrap();
    sqlx::query("lock table search_traces in exclusive mode")
        .execute(&mut *lock)
        .await
        .unwrap();
    loop {
        let searched = served.search(&secret, json!({"query": "zebra"})).await;
        assert_eq!(searched.status, 200);
        if searched.body["search_id"].is_null() {
            break;
        }
    }
    let searched = served.search(&other, json!({"query": "zebra"})).await;
    assert!(searched.body["search_id"].is_string(), "{searched:?}");
    lock.rollback().await.unwrap();
    let path = format!(
        "/v2/searches/{}",
        searched.body["search_id"].as_str().unwrap()
    );
    eventually(async || served.ask(Method::GET, &path, &other, None).await.status == 200).await;
}

#[tokio::test]
async fn what_a_thousand_notes_come_from_is_not_kept_parsed() {
    let served = Served::start().await;
    let writer = served.key(&["--tenant", "t", "--write"]).await;
    let before = megabytes(&served.worker, "VmHWM");
    let source = format!("{{\"of\":[{}]}}", ["1"; 8_000].join(","));
    let note = format!(
        "{{\"project_id\":\"p\",\"agent_id\":\"a\",\"scope\":\"s\",\"type\":\"n\",\"text\":\"x\",\
          \"source_ref\":{source}}}"
    );
    let body = format!("{{\"notes\":[{}]}}", vec![note; 1000].join(","));
    let most = 30 + ((body.len() as u64 * 5) >> 20);
    let answered = reqwest::Client::new()
        .post(format!("{}/v2/notes", served.url))
        .bearer_auth(&writer)
        .header("content-type", "application/json")
        .body(body)
        .send()
        .await
        .unwrap();
    assert_eq!(answered.status(), 201);
    let kept = "select min(jsonb_array_length(source_ref -> 'of')) from memory_notes";
    let kept: i32 = sqlx::query_scalar(kept)
        .fetch_one(&mut served.site.connect().await)
        .await
        .unwrap();
    assert_eq!(kept, 8_000);
    let grown = grown(&served.worker, before);
    assert!(grown < most, "{grown} MB");
}
