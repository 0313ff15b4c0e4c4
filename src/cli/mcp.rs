//! `elf mcp`: the Model Context Protocol over stdin and stdout, for agents that start their servers
//! themselves. Each call of a tool is a request to the HTTP API of a running ELF.

use std::time::Duration;

use anyhow::{Context, bail};
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use reqwest::{Client, RequestBuilder};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, JsonObject,
    ListToolsResult, PaginatedRequestParams, ServerConfig,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler, ServiceExt};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::http::api::mcp;

/// Where the key comes from. Not an argument: other users of the machine see those.
const KEY: &str = "ELF_API_KEY";

/// Longer than the API takes for its longest answer.
const TIMEOUT: Duration = Duration::from_secs(80);

/// Arguments of `elf mcp`.
#[derive(clap::Args)]
#[command(
    after_help = "The key of the HTTP API is read from $ELF_API_KEY; `elf key create` makes one."
)]
pub struct Args {
    /// The HTTP API of a running `elf worker` or `elf serve`
    #[arg(long, env = "ELF_API_URL", default_value = "http://127.0.0.1:9465")]
    url: String,
}

/// Serves the tools on stdin and stdout until stdin ends.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let Ok(key) = std::env::var(KEY) else {
        bail!("set {KEY} to a key of the HTTP API; `elf key create` makes one");
    };
    let key = HeaderValue::try_from(format!("Bearer {}", key.trim()))
        .map(|mut key| {
            key.set_sensitive(true);
            key
        })
        .with_context(|| format!("{KEY} is no key: it has characters that a header cannot have"))?;
    let client = Client::builder()
        .timeout(TIMEOUT)
        .default_headers(HeaderMap::from_iter([(AUTHORIZATION, key)]))
        .build()
        .context("failed to set up HTTPS")?;
    let url = args.url.trim_end_matches('/').to_owned();
    let serving = RemoteTools { client, url }
        .serve((tokio::io::stdin(), tokio::io::stdout()))
        .await
        .context("no MCP client on stdin and stdout")?;
    serving.waiting().await?;
    Ok(())
}

struct RemoteTools {
    client: Client,
    url: String,
}

impl ServerHandler for RemoteTools {
    fn get_info(&self) -> ServerConfig {
        mcp::info()
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(mcp::tools()))
    }

    async fn call_tool(
        &self,
        call: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let arguments = call.arguments.unwrap_or_default();
        let result = match self.request(&call.name, arguments)?.send().await {
            Ok(response) => answer(&call.name, response).await,
            Err(error) => failed(format!("no answer of {}: {error:#}", self.url)),
        };
        Ok(result.into())
    }
}

impl RemoteTools {
    /// The request that does what a tool is for.
    fn request(&self, tool: &str, arguments: JsonObject) -> Result<RequestBuilder, ErrorData> {
        let post =
            |path: &str, body: Value| self.client.post(format!("{}{path}", self.url)).json(&body);
        Ok(match tool {
            "search" => post("/v2/searches", arguments.into()),
            "find_duplicates" => post("/v2/notes:find_duplicates", arguments.into()),
            "add_note" => post("/v2/notes?wait=indexed", json!({ "notes": [arguments] })),
            "get_note" => {
                // For an id that is not a UUID, the API answers with its own error.
                let id = arguments.get("note_id").and_then(Value::as_str);
                let id = id.filter(|id| id.parse::<Uuid>().is_ok());
                let id = id.unwrap_or("none");
                self.client.get(format!("{}/v2/notes/{id}", self.url))
            }
            unknown => return Err(mcp::no_such_tool(unknown)),
        })
    }
}

async fn answer(tool: &str, response: reqwest::Response) -> CallToolResult {
    let status = response.status();
    let Ok(body) = response.json::<Value>().await else {
        return failed(format!(
            "the answer, status {status}, is no JSON: is this ELF's HTTP API?"
        ));
    };
    match tool {
        _ if !status.is_success() => CallToolResult::structured_error(body),
        "add_note" => CallToolResult::structured(json!({
            "note_id": body["note_ids"][0],
            "indexed": body["indexed"],
        })),
        _ => CallToolResult::structured(body),
    }
}

fn failed(message: String) -> CallToolResult {
    CallToolResult::error(vec![ContentBlock::text(message)])
}
