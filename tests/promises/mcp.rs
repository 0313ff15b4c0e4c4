//! Agents: the tools of the Model Context Protocol, called by the SDK of the protocol.

use std::process::Stdio;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::TcpListener;
use tokio::process::{Child, ChildStdin, ChildStdout};

use crate::support::api::{self, key, tool_answer, url};
use crate::support::clients::Served;
use crate::support::site::{self, Site, program};

const CLIENT: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/promises/clients/mcp_client.py"
);

/// How a client reaches the tools.
#[derive(Debug, Clone, Copy)]
enum Way {
    Http,
    Stdio,
}

/// Lists the tools and calls some of them.
async fn calls(served: &Served, way: Way, secret: &str, calls: &Value) -> Value {
    let (tools, program) = (format!("{}/mcp", served.url), program());
    let program = program.to_str().unwrap();
    let server: &[&str] = match way {
        Way::Http => &[&tools],
        Way::Stdio => &[program, "mcp"],
    };
    let args = [&[CLIENT], server].concat();
    let done = served.python(secret, &args, &calls.to_string()).await;
    serde_json::from_str(&done.stdout).unwrap()
}

#[tokio::test]
async fn an_agent_adds_finds_and_reads_notes() {
    let Some(served) = Served::start("an_agent_adds_finds_and_reads_notes").await else {
        return;
    };
    for (way, tenant) in [(Way::Http, "h"), (Way::Stdio, "s")] {
        let secret = key(&served.site, &["--tenant", tenant, "--write"]).await;
        let note = json!({
            "project_id": "p", "agent_id": "a", "scope": "s", "type": "fact",
            "text": "The zebra sleeps under the baobab."
        });
        let added = calls(&served, way, &secret, &json!([["add_note", note]])).await;
        assert_eq!(added["server"], "elf");
        let mut tools: Vec<_> = added["tools"].as_object().unwrap().keys().collect();
        tools.sort();
        let known = [
            "add_note",
            "delete_note",
            "find_duplicates",
            "get_note",
            "search",
            "update_note",
        ];
        assert_eq!(tools, known);
        let result = &added["results"][0];
        assert_eq!(result["is_error"], false, "{result}");
        assert_eq!(result["content"]["indexed"], true);
        let id = &result["content"]["note_id"];

        let wanted = json!([
            ["search", {"query": "zebra", "filter": {"type": "fact"}}],
            ["get_note", {"note_id": id}],
            ["find_duplicates", {"note_id": id}],
            ["search", {"query": "zebra", "colour": "black"}],
            ["get_note", {"note_id": uuid::Uuid::new_v4()}],
        ]);
        let answers = calls(&served, way, &secret, &wanted).await;
        let content = |call: usize| &answers["results"][call]["content"];
        assert_eq!(&content(0)["items"][0]["note_id"], id, "{answers}");
        assert_eq!(content(0)["degraded"], json!([]));
        assert_eq!(content(1)["text"], "The zebra sleeps under the baobab.");
        assert_eq!(content(2)["items"], json!([]));
        for (call, code, says) in [(3, "invalid", "colour"), (4, "not_found", "no note")] {
            assert_eq!(answers["results"][call]["is_error"], true, "{answers}");
            let error = &content(call)["error"];
            assert_eq!(error["code"], code, "{error}");
            assert!(error["message"].as_str().unwrap().contains(says), "{error}");
        }

        let wanted = json!([
            ["update_note", {"note_id": id, "text": "The okapi sleeps.", "metadata": "{\"lang\": \"en\"}"}],
            ["search", {"query": "okapi"}],
            ["update_note", {"text": "Which?"}],
            ["delete_note", {"note_id": id}],
            ["get_note", {"note_id": id}],
            ["delete_note", {"key": "none"}],
        ]);
        let answers = calls(&served, way, &secret, &wanted).await;
        let content = |call: usize| &answers["results"][call]["content"];
        assert_eq!(
            content(0),
            &json!({"note_id": id, "indexed": true}),
            "{answers}"
        );
        let hit = &content(1)["items"][0];
        assert_eq!(
            (&hit["note_id"], &hit["metadata"]),
            (id, &json!({"lang": "en"}))
        );
        assert_eq!(content(2)["error"]["details"]["field"], "note_id");
        assert_eq!(content(3), &json!({"note_id": id, "deleted": true}));
        for gone in [4, 5] {
            assert_eq!(content(gone)["error"]["code"], "not_found", "{answers}");
        }
    }
}

#[tokio::test]
async fn a_tool_reaches_no_more_than_its_key() {
    let Some(served) = Served::start("a_tool_reaches_no_more_than_its_key").await else {
        return;
    };
    let writer = key(&served.site, &["--tenant", "mine", "--write"]).await;
    let stranger = key(&served.site, &["--tenant", "theirs"]).await;
    let note = json!({
        "project_id": "p", "agent_id": "a", "scope": "s", "type": "fact", "text": "A secret."
    });
    let add = json!([["add_note", note]]);
    let added = calls(&served, Way::Http, &writer, &add).await;
    let id = &added["results"][0]["content"]["note_id"];
    assert!(id.is_string(), "{added}");
    for way in [Way::Http, Way::Stdio] {
        let wanted = json!([
            ["search", {"query": "secret"}],
            ["get_note", {"note_id": id}],
            ["find_duplicates", {"note_id": id}],
            ["add_note", note],
        ]);
        let answers = calls(&served, way, &stranger, &wanted).await;
        let results = &answers["results"];
        assert_eq!(results[0]["content"]["items"], json!([]), "{answers}");
        for (call, code) in [(1, "not_found"), (2, "not_found"), (3, "forbidden")] {
            assert_eq!(results[call]["is_error"], true, "{answers}");
            assert_eq!(results[call]["content"]["error"]["code"], code, "{answers}");
        }
        if matches!(way, Way::Http) {
            assert!(
                answers["tools"].get("add_note").is_none(),
                "it may not write"
            );
        }
    }
}

#[tokio::test]
async fn a_request_is_bounded_by_what_its_key_may_do() {
    let site = Site::start().await;
    site.configure("[service]\n", "[service]\nhttp_bind = \"127.0.0.1:0\"\n");
    let worker = site.worker();
    let url = url(&worker).await;
    let (reader, writer) = (
        key(&site, &["--tenant", "t"]).await,
        key(&site, &["--tenant", "t", "--write"]).await,
    );
    let client = reqwest::Client::new();
    let post = async |secret: &str, bytes: usize| {
        let arguments = json!({ "note_id": "x".repeat(bytes) });
        let call = json!({
            "jsonrpc": "2.0", "id": 1, "method": "tools/call",
            "params": { "name": "get_note", "arguments": arguments },
        });
        let answer = client
            .post(format!("{url}/mcp"))
            .header("accept", "application/json, text/event-stream")
            .bearer_auth(secret)
            .json(&call)
            .send()
            .await
            .unwrap();
        answer.status().as_u16()
    };
    assert_eq!(post("elf_none", 9).await, 401);
    for (secret, most) in [(&reader, 64 << 10), (&writer, 256 << 10)] {
        assert_eq!(post(secret, most / 2).await, 200);
        assert_eq!(post(secret, most).await, 413);
        // It is read to its end, so that the client gets the answer.
        assert_eq!(post(secret, 8 << 20).await, 413);
    }
}

/// `elf mcp`, spoken to line by line.
struct Bridge {
    _child: Child,
    stdin: ChildStdin,
    stdout: Lines<BufReader<ChildStdout>>,
}

impl Bridge {
    async fn start(site: &Site, url: &str, secret: &str) -> Self {
        let mut command = site::elf(site.path("").as_path());
        let mut child = command
            .args(["mcp", "--url", url])
            .env("ELF_API_KEY", secret)
            // Nothing is there: a server on this machine is asked directly.
            .env("http_proxy", "http://127.0.0.1:9")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let stdout = BufReader::new(stdout).lines();
        let mut bridge = Self {
            _child: child,
            stdin,
            stdout,
        };
        let info = json!({"name": "test", "version": "1"});
        let hello =
            json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": info});
        bridge.ask("initialize", hello).await;
        let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        bridge.write(&ready).await;
        bridge
    }

    async fn write(&mut self, message: &Value) {
        let line = format!("{message}\n");
        self.stdin.write_all(line.as_bytes()).await.unwrap();
    }

    async fn ask(&mut self, method: &str, params: Value) -> Value {
        let request = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        self.write(&request).await;
        let line = self.stdout.next_line().await.unwrap().expect("it answers");
        serde_json::from_str(&line).unwrap()
    }
}

/// Sends one request to `/mcp`.
async fn post(url: &str, secret: &str, method: &str, params: Value) -> reqwest::Response {
    let request = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
    reqwest::Client::new()
        .post(format!("{url}/mcp"))
        .header("accept", "application/json, text/event-stream")
        .bearer_auth(secret)
        .json(&request)
        .send()
        .await
        .unwrap()
}

#[tokio::test]
async fn one_mistake_is_told_in_one_way() {
    let served = api::Served::start().await;
    let secret = served.key(&["--tenant", "t", "--write"]).await;
    let reader = served.key(&["--tenant", "t"]).await;
    let id = served.add(&secret, "The zebra sleeps.").await;
    let absent = uuid::Uuid::new_v4();
    let long = "x".repeat(50_000);
    let mut bridge = Bridge::start(&served.site, &served.url, &secret).await;
    let mut of_reader = Bridge::start(&served.site, &served.url, &reader).await;
    // The code and a part of the message; the code of the protocol for a tool that there is not.
    for (tool, arguments, code, says) in [
        (
            "recall",
            json!({}),
            "-32602",
            "there are search, get_note, find_duplicates, add_note",
        ),
        (&*long, json!({}), "-32602", "no such tool"),
        (
            "search",
            json!({"query": "a", "colour": "red"}),
            "invalid",
            "colour is no field",
        ),
        (
            "search",
            json!({"query": "a", &long: 1}),
            "invalid",
            "is no field",
        ),
        ("search", json!({}), "invalid", "query is missing"),
        (
            "search",
            json!({"query": null}),
            "invalid",
            "query is missing",
        ),
        (
            "search",
            json!({"query": ""}),
            "invalid",
            "the query is empty",
        ),
        (
            "search",
            json!({"query": 5}),
            "invalid",
            "query must be a string, not 5",
        ),
        (
            "search",
            json!({"query": ["a"]}),
            "invalid",
            "query must be a string, not a list",
        ),
        (
            "search",
            json!({"query": "a", "limit": "ten"}),
            "invalid",
            "limit must be a whole number",
        ),
        (
            "search",
            json!({"query": "a", "limit": long}),
            "invalid",
            "limit must be a whole number",
        ),
        (
            "search",
            json!({"query": "a", "limit": 0}),
            "invalid",
            "limit must be 1 to 100, not 0",
        ),
        (
            "search",
            json!({"query": "a", "filter": "red"}),
            "invalid",
            "filter must be an object",
        ),
        (
            "search",
            json!({"query": "a", "by": "magic"}),
            "invalid",
            "by must be dense, bm25, hybrid",
        ),
        ("get_note", json!({}), "invalid", "note_id is missing"),
        (
            "get_note",
            json!({"note_id": "zebra"}),
            "invalid",
            "note_id must be a UUID",
        ),
        (
            "get_note",
            json!({"note_id": 5}),
            "invalid",
            "note_id must be a UUID",
        ),
        (
            "get_note",
            json!({"note_id": absent}),
            "not_found",
            "no note",
        ),
        (
            "get_note",
            json!({"note_id": id, "offset": -1}),
            "invalid",
            "offset must be a whole number",
        ),
        (
            "get_note",
            json!({"note_id": id, "offset": 99}),
            "invalid",
            "the text has 17 bytes",
        ),
        (
            "get_note",
            json!({"note_id": id, "limit": 0}),
            "invalid",
            "limit must be at least 1",
        ),
        (
            "find_duplicates",
            json!({"note_id": absent}),
            "not_found",
            "no note",
        ),
        (
            "find_duplicates",
            json!({"note_id": id, "min_similarity": 2}),
            "invalid",
            "-1 to 1",
        ),
        (
            "add_note",
            json!({"text": " "}),
            "invalid",
            "the text is empty",
        ),
        (
            "add_note",
            json!({"text": "a", "importance": 7}),
            "invalid",
            "importance must be 0 to 1",
        ),
        (
            "add_note",
            json!({"text": "a", "expires_at": "soon"}),
            "invalid",
            "expires_at must be a time",
        ),
    ] {
        let params = json!({"name": tool, "arguments": arguments});
        let answer = post(&served.url, &secret, "tools/call", params.clone()).await;
        assert_eq!(answer.status(), 200);
        let text = answer.text().await.unwrap();
        assert!(text.len() < 4000, "{} bytes: {}", text.len(), &text[..2000]);
        let over_http: Value = serde_json::from_str(&text).unwrap();
        let over_stdio = bridge.ask("tools/call", params).await;
        assert_eq!(over_http["result"], over_stdio["result"]);
        assert_eq!(over_http["error"], over_stdio["error"]);
        let error = match code {
            "-32602" => over_http["error"].clone(),
            _ => {
                assert_eq!(over_http["result"]["isError"], true, "{over_http}");
                tool_answer(&over_http)["error"].clone()
            }
        };
        assert_eq!(error["code"].to_string().trim_matches('"'), code, "{error}");
        assert!(error["message"].as_str().unwrap().contains(says), "{error}");
    }
    // What a key may not do, and a key that is none.
    let params = json!({"name": "add_note", "arguments": {"text": "a"}});
    let answer = post(&served.url, &reader, "tools/call", params.clone()).await;
    let over_http: Value = answer.json().await.unwrap();
    assert_eq!(tool_answer(&over_http)["error"]["code"], "forbidden");
    let over_stdio = of_reader.ask("tools/call", params.clone()).await;
    assert_eq!(over_http["result"], over_stdio["result"]);
    let refused = post(&served.url, "elf_none", "tools/call", params.clone()).await;
    assert_eq!(refused.status(), 401);
    let refused: Value = refused.json().await.unwrap();
    let mut unknown = Bridge::start(&served.site, &served.url, "elf_none").await;
    let over_stdio = unknown.ask("tools/call", params).await;
    assert_eq!(over_stdio["result"]["isError"], true);
    assert_eq!(tool_answer(&over_stdio), refused);
}

#[tokio::test]
async fn what_models_mean_is_read() {
    let served = api::Served::start().await;
    let secret = served.key(&["--tenant", "t", "--write"]).await;
    let id = served.add(&secret, "The zebra sleeps.").await;
    for arguments in [
        json!({"query": "zebra", "limit": "5"}),
        json!({"query": "zebra", "limit": 5.0}),
        json!({"query": "zebra", "limit": null, "by": null, "rerank": null, "filter": null}),
        json!({"query": "zebra", "rerank": "true", "filter": {"scope": "", "min_importance": "0.1"}}),
        json!({"query": "zebra", "filter": "{\"scope\": \"s\"}"}),
        json!({"query": "zebra", "filter": {}}),
    ] {
        let params = json!({"name": "search", "arguments": arguments});
        let answer = post(&served.url, &secret, "tools/call", params).await;
        let answer = tool_answer(&answer.json().await.unwrap());
        assert_eq!(answer["items"][0]["note_id"], id, "{arguments}: {answer}");
    }
    let note = json!({"text": "A note.", "key": "", "project_id": null, "expires_at": ""});
    for expected in 2..4 {
        let params = json!({"name": "add_note", "arguments": note});
        let answer = post(&served.url, &secret, "tools/call", params).await;
        assert_eq!(tool_answer(&answer.json().await.unwrap())["indexed"], true);
        let notes: i64 = sqlx::query_scalar("select count(*) from memory_notes")
            .fetch_one(&mut served.site.connect().await)
            .await
            .unwrap();
        assert_eq!(notes, expected, "an empty key names no note");
    }
}

#[tokio::test]
async fn every_answer_of_a_tool_is_bounded() {
    let served = api::Served::start().await;
    let secret = served.key(&["--tenant", "t", "--write"]).await;
    // Quotation marks take four bytes each in an answer.
    let text = |n: usize| format!("The zebra {n}. {}", "\"zebra\" \\ sleeps. ".repeat(30));
    let notes: Vec<Value> = (0..100)
        .map(|n| json!({"text": text(n), "key": format!("{n}{}", "\"".repeat(900))}))
        .collect();
    let body = Some(json!({ "notes": notes }));
    let path = "/v2/notes?wait=indexed";
    let added = served.ask(reqwest::Method::POST, path, &secret, body).await;
    assert_eq!(added.body["indexed"], true, "{added:?}");
    let id = &added.body["note_ids"][0];
    for (tool, arguments, least) in [
        ("search", json!({"query": "zebra", "limit": 100}), 10),
        ("search", json!({"query": "zebra", "limit": 10}), 10),
        (
            "find_duplicates",
            json!({"note_id": id, "limit": 100, "min_similarity": -1}),
            10,
        ),
        ("get_note", json!({"note_id": id}), 0),
    ] {
        let params = json!({"name": tool, "arguments": arguments});
        let answer = post(&served.url, &secret, "tools/call", params).await;
        let text = answer.text().await.unwrap();
        assert!(text.len() <= 100_000, "{tool}: {} bytes", text.len());
        let answer = serde_json::from_str(&text).unwrap();
        let answer = tool_answer(&answer);
        let items = answer["items"].as_array().map_or(0, Vec::len);
        assert!(
            items >= least,
            "{tool}: {items} items of {} bytes",
            text.len()
        );
        if tool != "get_note" {
            let left_out = answer["left_out"].as_u64().unwrap_or(0) as usize;
            let asked = arguments["limit"].as_u64().unwrap() as usize;
            assert!(items + left_out >= asked.min(99), "{items} and {left_out}");
        }
        if tool == "search" {
            assert!(answer["items"][0]["text"].is_string(), "{answer}");
        }
    }
}

#[tokio::test]
async fn a_page_of_another_site_is_refused() {
    let served = api::Served::start().await;
    let secret = served.key(&["--tenant", "t"]).await;
    let port = served.url.rsplit(':').next().unwrap();
    for (origin, status) in [
        (None, 200),
        (Some("http://localhost:6274"), 200),
        (Some("http://127.0.0.1:9465"), 200),
        (Some("https://[::1]"), 200),
        (Some("https://evil.example"), 403),
        (Some("null"), 403),
        (Some("http://localhost.evil.example"), 403),
        // A name of the attacker that resolves to this machine.
        (Some(&*format!("http://evil.example:{port}")), 403),
    ] {
        let mut request = reqwest::Client::new()
            .post(format!("{}/mcp", served.url))
            .header("accept", "application/json, text/event-stream")
            .header("host", format!("evil.example:{port}"))
            .bearer_auth(&secret)
            .json(&json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}));
        if let Some(origin) = origin {
            request = request.header("origin", origin);
        }
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status().as_u16(), status, "{origin:?}");
    }
}

#[tokio::test]
async fn elf_mcp_takes_its_key_nowhere_else() {
    let site = Site::start().await;
    let (here, elsewhere) = (
        TcpListener::bind("127.0.0.1:0").await.unwrap(),
        TcpListener::bind("127.0.0.1:0").await.unwrap(),
    );
    let url = format!("http://{}", here.local_addr().unwrap());
    let target = format!("http://{}/mcp", elsewhere.local_addr().unwrap());
    let redirecting = tokio::spawn(async move {
        for status in ["301", "302", "307", "308"] {
            let (mut client, _) = here.accept().await.unwrap();
            let mut head = [0; 4096];
            let _ = client.read(&mut head).await.unwrap();
            let answer = format!(
                "HTTP/1.1 {status} Moved\r\nlocation: {target}\r\ncontent-length: 0\r\n\
                 connection: close\r\n\r\n"
            );
            client.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    let mut bridge = Bridge::start(&site, &url, "elf_secret").await;
    for _ in 0..4 {
        let params = json!({"name": "search", "arguments": {"query": "a"}});
        let answered = bridge.ask("tools/call", params).await;
        let error = &tool_answer(&answered)["error"];
        assert_eq!(error["code"], "unavailable", "{answered}");
        assert!(
            error["message"].as_str().unwrap().contains("--url"),
            "{error}"
        );
    }
    redirecting.await.unwrap();
    // It has answered, and nothing has come.
    let came =
        std::future::poll_fn(|context| std::task::Poll::Ready(elsewhere.poll_accept(context)));
    assert!(came.await.is_pending());
}

#[tokio::test]
async fn elf_mcp_says_that_a_note_may_have_been_added() {
    let site = Site::start().await;
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", server.local_addr().unwrap());
    let mut bridge = Bridge::start(&site, &url, "elf_secret").await;
    let breaking = tokio::spawn(async move {
        for _ in 0..2 {
            let (mut client, _) = server.accept().await.unwrap();
            let _ = client.read(&mut [0; 4096]).await.unwrap();
        }
    });
    for (tool, code) in [("add_note", "outcome_unknown"), ("search", "unavailable")] {
        let params = json!({"name": tool, "arguments": {"text": "a"}});
        let answered = bridge.ask("tools/call", params).await;
        assert_eq!(tool_answer(&answered)["error"]["code"], code, "{answered}");
    }
    breaking.await.unwrap();
    // Now there is no server: nothing was sent.
    let params = json!({"name": "add_note", "arguments": {"text": "a"}});
    let answered = bridge.ask("tools/call", params).await;
    assert_eq!(
        tool_answer(&answered)["error"]["code"],
        "unavailable",
        "{answered}"
    );
}

#[tokio::test]
async fn without_a_key_elf_mcp_says_what_to_do() {
    let site = Site::empty().await;
    site.elf(&["mcp"])
        .await
        .exits(1)
        .says(&["ELF_API_KEY", "elf key create"]);
}
