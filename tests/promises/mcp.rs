//! Agents: the tools of the Model Context Protocol, called by the SDK of the protocol.

use serde_json::{Value, json};

use crate::support::api::{key, url};
use crate::support::clients::Served;
use crate::support::site::{Site, program};

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
        assert_eq!(tools, ["add_note", "find_duplicates", "get_note", "search"]);
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

#[tokio::test]
async fn without_a_key_elf_mcp_says_what_to_do() {
    let site = Site::empty().await;
    site.elf(&["mcp"])
        .await
        .exits(1)
        .says(&["ELF_API_KEY", "elf key create"]);
}
