//! `elf mcp`: the Model Context Protocol over stdin and stdout, for agents that start their servers
//! themselves. Each call of a tool is passed on to `/mcp` of a running ELF, and its answer as it is.

use std::time::Duration;

use anyhow::{Context, bail};
use reqwest::header::{ACCEPT, AUTHORIZATION, HeaderMap, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Client, Url};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ListToolsResult,
    PaginatedRequestParams, ResultType, ServerConfig,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler, ServiceExt};
use serde_json::{Map, Value, json};

use super::value;
use crate::config::is_loopback;
use crate::http::api::mcp;
use crate::metadata::Declared;

/// Where the key comes from. Not an argument: other users of the machine see those.
const KEY: &str = "ELF_API_KEY";

/// Longer than the API takes for its longest answer.
const TIMEOUT: Duration = Duration::from_secs(80);

/// How long the server has to name its tools.
const LIST_TIMEOUT: Duration = Duration::from_secs(2);

/// Arguments of `elf mcp`.
#[derive(clap::Args)]
#[command(
    after_help = "The key of the HTTP API is read from $ELF_API_KEY; `elf key create` makes one."
)]
pub struct Args {
    /// The HTTP API of a running `elf worker` or `elf serve`
    #[arg(
        long,
        env = "ELF_API_URL",
        default_value = "http://127.0.0.1:9465",
        value_parser = value::http_url
    )]
    url: String,
    #[command(flatten)]
    labels: Labels,
}

/// The labels of notes that are added, or named by their key, where the agent sends none.
#[derive(clap::Args)]
struct Labels {
    /// The project of notes that the agent adds or names by key, if it sends none
    #[arg(long)]
    project: Option<String>,
    /// The agent of such notes
    #[arg(long)]
    agent: Option<String>,
    /// The scope of such notes
    #[arg(long)]
    scope: Option<String>,
    /// The type of notes that the agent adds, if it sends none
    #[arg(long = "type", value_name = "TYPE")]
    kind: Option<String>,
}

impl Labels {
    fn complete(&self, tool: &str, arguments: &mut Map<String, Value>) {
        let is_by_key = arguments.contains_key("key") && !arguments.contains_key("note_id");
        let is_added = tool == "add_note";
        let is_named = is_by_key && ["update_note", "delete_note"].contains(&tool);
        if !is_added && !is_named {
            return;
        }
        let kind = self.kind.as_ref().filter(|_| is_added);
        for (name, label) in [
            ("project_id", self.project.as_ref()),
            ("agent_id", self.agent.as_ref()),
            ("scope", self.scope.as_ref()),
            ("type", kind),
        ] {
            if let Some(label) = label {
                let own = || Value::from(label.clone());
                arguments.entry(name).or_insert_with(own);
            }
        }
    }
}

/// Serves the tools on stdin and stdout until stdin ends.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let key = std::env::var(KEY).unwrap_or_default();
    if key.trim().is_empty() {
        bail!("set {KEY} to a key of the HTTP API; `elf key create` makes one");
    }
    let key = HeaderValue::try_from(format!("Bearer {}", key.trim()))
        .map(|mut key| {
            key.set_sensitive(true);
            key
        })
        .with_context(|| format!("{KEY} is no key: it has characters that a header cannot have"))?;
    let mut client = Client::builder();
    let here = Url::parse(&args.url).ok();
    if here.is_some_and(|url| url.host_str().is_some_and(is_loopback)) {
        // $HTTP_PROXY would get the key.
        client = client.no_proxy();
    }
    let client = client
        .timeout(TIMEOUT)
        .default_headers(HeaderMap::from_iter([
            (AUTHORIZATION, key),
            (
                ACCEPT,
                HeaderValue::from_static("application/json, text/event-stream"),
            ),
        ]))
        // It would take the key to another machine, or out of TLS.
        .redirect(Policy::none())
        .build()
        .context("failed to set up HTTPS")?;
    let url = format!("{}/mcp", args.url.trim_end_matches('/'));
    let serving = RemoteTools {
        client,
        url,
        labels: args.labels,
    }
    .serve((tokio::io::stdin(), tokio::io::stdout()))
    .await
    .context("no MCP client on stdin and stdout")?;
    serving.waiting().await?;
    Ok(())
}

struct RemoteTools {
    client: Client,
    /// The tools of the server.
    url: String,
    labels: Labels,
}

impl ServerHandler for RemoteTools {
    fn get_info(&self) -> ServerConfig {
        mcp::info()
    }

    /// Those of the server, or that this program knows: a client asks once, when the server may not run yet.
    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let request = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" });
        let answered = async {
            let request = self.client.post(&self.url).json(&request);
            let answer = request.timeout(LIST_TIMEOUT).send().await.ok()?;
            let mut answer = answer.json::<Value>().await.ok()?;
            let listed = serde_json::from_value(answer["result"].take()).ok()?;
            Some(ListToolsResult {
                result_type: Some(ResultType::COMPLETE),
                ..listed
            })
        };
        let of_this_program = || ListToolsResult::with_all_items(mcp::tools(&Declared::new()));
        Ok(answered.await.unwrap_or_else(of_this_program))
    }

    async fn call_tool(
        &self,
        call: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let mut arguments = call.arguments.unwrap_or_default();
        self.labels.complete(&call.name, &mut arguments);
        let request = json!({
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tools/call",
            "params": { "name": call.name, "arguments": arguments },
        });
        let answered = async {
            let request = self.client.post(&self.url).json(&request);
            let response = request.send().await.map_err(|error| {
                let is_sent = !error.is_connect();
                let reason = format!(
                    "no answer of {}: {:#}",
                    self.url,
                    anyhow::Error::from(error)
                );
                mcp::no_answer(&call.name, is_sent, &reason)
            })?;
            let status = response.status();
            let read = response.json::<Value>().await;
            read.map_err(|_| {
                let reason = match status.is_redirection() {
                    true => format!(
                        "{} redirects, and the key goes nowhere else: set --url",
                        self.url
                    ),
                    false => format!(
                        "the answer of {}, status {status}, is no JSON: is this ELF's HTTP API?",
                        self.url
                    ),
                };
                mcp::no_answer(&call.name, status.is_success(), &reason)
            })
        };
        match answered.await {
            Ok(answer) => result(answer),
            Err(failed) => Ok(failed.into()),
        }
    }
}

/// What the server says of a call: the result of its tool, an error of the protocol, or an error of the HTTP API, which
/// a model can read.
fn result(mut answer: Value) -> Result<CallToolResponse, ErrorData> {
    if answer["error"]["code"].is_i64() {
        let error = serde_json::from_value(answer["error"].take());
        return Err(
            error.unwrap_or_else(|error| ErrorData::internal_error(error.to_string(), None))
        );
    }
    let given = answer.get_mut("result").map(Value::take);
    let mut result = match serde_json::from_value::<CallToolResult>(given.unwrap_or_default()) {
        Ok(result) => result,
        Err(_) => CallToolResult::error(vec![ContentBlock::text(answer.to_string())]),
    };
    // Newer versions of the protocol demand it, and the library leaves it out for older ones.
    result.result_type = Some(ResultType::COMPLETE);
    Ok(result.into())
}
