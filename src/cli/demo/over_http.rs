//! The demo's HTTP API: an application and an agent search with a key.

use std::net::SocketAddr;

use anyhow::Context;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{print, say};
use crate::cli::import::DEFAULT_TENANT;
use crate::cli::output::excerpt;
use crate::cli::wiring;
use crate::config::Config;
use crate::http::api::{self, Api, new_secret};
use crate::http::bounds::Bounds;
use crate::store::Reach;
use crate::worker::Pipeline;

const QUERY: &str = "insomnia";

/// Serves the HTTP API with a key for the demo's tenant, and asks it as an application and as an
/// agent do.
pub async fn search(config: &Config, pipeline: &Pipeline) -> anyhow::Result<()> {
    let store = pipeline.serving.store.clone();
    let (secret, hash) = new_secret();
    let reach = Reach {
        tenant_id: DEFAULT_TENANT.to_owned(),
        project_id: None,
        agent_id: None,
    };
    store.create_api_key("demo", hash, &reach, false).await?;
    let api = Api {
        canary: None,
        store,
        searcher: wiring::searcher(pipeline, config).await?,
        version: pipeline.version.name.clone(),
        max_note_bytes: config.worker.max_note_bytes,
        bounds: Bounds::of_this_process(config),
        trace_days: config.search.trace_days,
    };
    let stop = CancellationToken::new();
    let (address, serving) = api::serve("127.0.0.1:0", api, stop.clone()).await?;

    say("The same over HTTP, with a key that reaches one tenant: POST /v2/searches")?;
    let asked = json!({ "query": QUERY, "limit": 1 });
    let found = post(address, "/v2/searches", &secret, &asked).await?;
    show(&asked, &found)?;

    say("And as an agent asks, with the Model Context Protocol: the tool `search` of /mcp")?;
    let call = json!({
        "jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": { "name": "search", "arguments": asked },
    });
    let answer = post(address, "/mcp", &secret, &call).await?;
    let found = answer["result"]["content"][0]["text"].as_str();
    let found = serde_json::from_str(found.context("the tool answered without a text")?)?;
    show(&call["params"], &found)?;
    stop.cancel();
    serving.await?;
    Ok(())
}

async fn post(
    address: SocketAddr,
    path: &str,
    secret: &str,
    body: &Value,
) -> anyhow::Result<Value> {
    let answer = reqwest::Client::new()
        .post(format!("http://{address}{path}"))
        .bearer_auth(secret)
        .header("accept", "application/json, text/event-stream")
        .json(body)
        .send()
        .await?
        .error_for_status()?;
    Ok(answer.json().await?)
}

fn show(asked: &Value, found: &Value) -> anyhow::Result<()> {
    let items = found["items"].as_array();
    let best = items.context("the answer has no items")?.first();
    print(&format!("asked: {asked}"))?;
    let Some(best) = best else {
        return print("found: nothing");
    };
    let [key, text] = ["key", "text"].map(|field| best[field].as_str().unwrap_or_default());
    print(&format!(
        "found: {}: {}",
        excerpt(key, 100),
        excerpt(text, 100)
    ))
}
