//! What agents meet: the schemas of the tools, and how long an answer is.

use serde_json::{Value, json};

use super::Case;
use crate::support::api::{Served, tool_answer};

/// What `/mcp` answers, as bytes.
async fn answer(served: &Served, secret: &str, request: String) -> String {
    let asked = reqwest::Client::new()
        .post(format!("{}/mcp", served.url))
        .bearer_auth(secret)
        .header("content-type", "application/json")
        .header("accept", "application/json, text/event-stream")
        .body(request);
    asked.send().await.unwrap().text().await.unwrap()
}

pub async fn mcp_schemas(case: Case) {
    let served = Served::start().await;
    let secret = served.key(&["--tenant", "acme", "--write"]).await;
    let listed = answer(&served, &secret, case.text("request.json")).await;
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let tools = listed["result"]["tools"].as_array().unwrap();
    let names: Vec<_> = tools.iter().map(|tool| tool["name"].clone()).collect();
    let known: Value = serde_json::from_str(&case.text("tools-list.json")).unwrap();
    let known = known.as_array().unwrap();
    let known: Vec<_> = known.iter().map(|tool| tool["name"].clone()).collect();
    assert!(known.iter().all(|name| names.contains(name)), "{names:?}");
    for tool in tools {
        let text = tool["inputSchema"].to_string();
        for word in [
            "$ref",
            "$defs",
            "oneOf",
            "anyOf",
            "allOf",
            "\"type\":[",
            "\"format\"",
            "additionalProperties",
        ] {
            assert!(!text.contains(word), "{word} in {text}");
        }
    }
}

pub async fn mcp_get_note(case: Case) {
    let served = Served::start().await;
    let secret = served.key(&["--tenant", "acme"]).await;
    let mut database = served.site.connect().await;
    sqlx::raw_sql(sqlx::AssertSqlSafe(case.text("notes.sql")))
        .execute(&mut database)
        .await
        .unwrap();
    let text: String = sqlx::query_scalar("select text from memory_notes")
        .fetch_one(&mut database)
        .await
        .unwrap();
    let answered = answer(&served, &secret, case.text("request.json")).await;
    assert!(answered.len() <= 100_000, "{} bytes", answered.len());
    assert_eq!(answered.matches("Paragraph 1 of").count(), 1);

    // Part by part it is the whole text, however much is asked for.
    let request: Value = serde_json::from_str(&case.text("request.json")).unwrap();
    let (mut read, mut offset) = (String::new(), json!(0));
    while !offset.is_null() {
        let mut request = request.clone();
        request["params"]["arguments"]["offset"] = offset;
        request["params"]["arguments"]["limit"] = json!(1_000_000);
        let answered = answer(&served, &secret, request.to_string()).await;
        assert!(answered.len() <= 100_000, "{} bytes", answered.len());
        assert!(answered.len() > 50_000 || read.len() + 60_000 > text.len());
        let part = tool_answer(&serde_json::from_str(&answered).unwrap());
        read.push_str(part["text"].as_str().unwrap());
        assert_eq!(part["text_bytes"], text.len());
        offset = part["next_offset"].clone();
    }
    assert_eq!(read, text);
}
