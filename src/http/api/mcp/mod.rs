//! `/mcp`: the Model Context Protocol over streamable HTTP, for agents.
//! <https://modelcontextprotocol.io/specification>
//!
//! A tool does what the route of the same purpose does, under the same key: the notes that an
//! agent reaches are those of its key. Each request stands alone, the server keeps no session.

mod arguments;
mod change;
mod fit;
mod part;
mod schema;

use std::borrow::Cow;
use std::sync::Arc;

use axum::Json;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Implementation,
    ListToolsResult, PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool,
    ToolAnnotations,
};
use rmcp::service::RequestContext;
use rmcp::transport::StreamableHttpServerConfig;
use rmcp::transport::StreamableHttpService;
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::auth::Caller;
use super::body::read_in_time;
use super::error::{ApiError, ErrorBody, excerpt};
use super::{Body, MAX_SMALL_BODY, Shared, duplicates, notes, searches, wait};
use crate::config::is_loopback;
use crate::metadata::Declared;

/// What a model reads before it uses the tools.
const INSTRUCTIONS: &str = "Notes of one tenant. Use `search` to find notes by meaning and by \
                            keyword; each result has the passage that answers best and the text around \
                            it. `add_note` answers when a search can find the note.";

/// Most bytes of a request with a key that may write. Longer notes come by `POST /v2/notes`.
const MAX_BODY: usize = 256 << 10;

/// How many times as much memory as its bytes a parsed message may take.
const PARSED: u64 = 100;

pub(super) fn router(shared: &Arc<Shared>) -> Router<Arc<Shared>> {
    let tools = Tools(shared.clone());
    let settings = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        .with_json_response(true)
        .with_max_request_body_bytes(MAX_BODY)
        // [`check_origin`] and the key keep pages of other sites out, under whatever name.
        .disable_allowed_hosts();
    let service = StreamableHttpService::new(
        move || Ok(tools.clone()),
        Arc::<NeverSessionManager>::default(),
        settings,
    );
    Router::new()
        .route_service("/mcp", service)
        .layer(from_fn_with_state(shared.clone(), bounded))
}

/// Refuses pages of other sites, and reads the body within the limits of the other routes.
async fn bounded(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    request: Request,
    next: Next,
) -> Response {
    let (head, body) = request.into_parts();
    if let Err(error) = check_origin(&head) {
        return error.into_response();
    }
    let limit = match caller.key.can_write {
        true => MAX_BODY,
        false => MAX_SMALL_BODY,
    };
    match read_in_time(&shared, &caller, body, limit, PARSED).await {
        Ok(bytes) => next.run(Request::from_parts(head, bytes.into())).await,
        Err(error) => error.into_response(),
    }
}

/// Refuses what a page of another site sends, under the name of that site or of ours (DNS rebinding): the protocol
/// demands it. Agents send no `Origin`, and pages that run on the agent's machine may call.
fn check_origin(head: &Parts) -> Result<(), ApiError> {
    let is_local = |origin: &str| {
        let name = origin.split_once("://").map(|(_, name)| name);
        name.is_some_and(is_loopback)
    };
    match head.headers.get(header::ORIGIN) {
        Some(origin) if !origin.to_str().is_ok_and(is_local) => Err(ApiError::forbidden(
            "the request comes from a page of another site",
        )),
        _ => Ok(()),
    }
}

/// What the server says of itself.
pub fn info() -> ServerConfig {
    let capabilities = ServerCapabilities::builder().enable_tools().build();
    ServerConfig::new(capabilities)
        .with_server_info(Implementation::new("elf", env!("CARGO_PKG_VERSION")))
        .with_instructions(INSTRUCTIONS)
}

/// The tools that change notes, for keys that may write.
const WRITING: [&str; 3] = ["add_note", "update_note", "delete_note"];

/// The tools. Their descriptions name the fields that a search may filter by.
pub fn tools(declared: &Declared) -> Vec<Tool> {
    let reading = |tool: Tool| tool.with_annotations(ToolAnnotations::new().read_only(true));
    let mut tools = vec![
        reading(tool::<searches::SearchRequest>(
            "search",
            "Find notes by meaning and by keyword. Returns the best notes, best first, each with \
             the passage that answers best and the text around it. With max_tokens, only as many \
             passages as fit. If the answer is too long, the last notes come without the text \
             around; get_note reads it.",
        )),
        reading(tool::<part::PartRequest>(
            "get_note",
            "Read a note by its id. A long text comes in parts: `next_offset` is the `offset` of the next one.",
        )),
        reading(tool::<duplicates::DuplicatesRequest>(
            "find_duplicates",
            "Find notes that say nearly the same as a note.",
        )),
        tool::<notes::NewNote>(
            "add_note",
            "Add a note. Waits up to 30 seconds until a search can find it, and says in `indexed` \
             whether one can. A note of the same key is replaced.",
        ),
        tool::<change::UpdateRequest>(
            "update_note",
            "Change a note: the fields that are sent; the others stay. Send note_id or key, and at least one \
             other field. Waits as add_note does.",
        ),
        tool::<change::DeleteRequest>(
            "delete_note",
            "Delete a note for ever. Send note_id or key. No search finds it from then on.",
        )
        .with_annotations(ToolAnnotations::new().destructive(true)),
    ];
    for tool in &mut tools {
        schema::name_fields(Arc::make_mut(&mut tool.input_schema), declared);
    }
    tools
}

/// The answer to a call of another tool than those of [`tools`].
fn no_such_tool(name: &str) -> ErrorData {
    let tools = tools(&Declared::new());
    let names: Vec<String> = tools.iter().map(|tool| tool.name.to_string()).collect();
    let (name, names) = (excerpt(name, 100), names.join(", "));
    ErrorData::invalid_params(format!("no such tool: {name:?}; there are {names}"), None)
}

/// The result of a call. The answer is there once, as text, which every client reads.
fn result(answer: Result<Value, ApiError>) -> CallToolResult {
    let (answer, is_error) = match answer {
        Ok(answer) if fit::cost(&answer) <= fit::MAX_COST => (answer, false),
        Ok(_) => (json!(ErrorBody::from(too_long())), true),
        Err(error) => (json!(ErrorBody::from(error)), true),
    };
    let content = vec![ContentBlock::text(answer.to_string())];
    match is_error {
        false => CallToolResult::success(content),
        true => CallToolResult::error(content),
    }
}

fn too_long() -> ApiError {
    let message = "the answer is too long for an agent: ask for less, or read it over /v2";
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
}

/// The result of a call that got no answer from the server: `elf mcp` stands between.
pub fn no_answer(tool: &str, is_sent: bool, reason: &str) -> CallToolResult {
    result(Err(match tool {
        _ if is_sent && WRITING.contains(&tool) => ApiError::outcome_unknown(),
        _ => ApiError::unavailable(reason),
    }))
}

#[derive(Clone)]
struct Tools(Arc<Shared>);

impl ServerHandler for Tools {
    fn get_info(&self) -> ServerConfig {
        info()
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        // While Postgres is unavailable, they name no field.
        let declared = self.0.api.store.declared_fields().await;
        let mut tools = tools(&declared.unwrap_or_default());
        if !caller(&context)?.key.can_write {
            tools.retain(|tool| !WRITING.contains(&&*tool.name));
        }
        Ok(ListToolsResult::with_all_items(tools))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let caller = caller(&context)?;
        let given = Value::Object(request.arguments.unwrap_or_default());
        let calling = self.call(caller, &request.name, given);
        // Nothing else ends the call of a client that has gone.
        let Some(answer) = context.ct.run_until_cancelled(calling).await else {
            return Err(ErrorData::internal_error("the client has gone", None));
        };
        // A model can read the error of a tool and correct its call.
        Ok(result(answer?).into())
    }
}

impl Tools {
    async fn call(
        &self,
        caller: Caller,
        name: &str,
        given: Value,
    ) -> Result<Result<Value, ApiError>, ErrorData> {
        let mut tools = tools(&Declared::new()).into_iter();
        let tool = tools.find(|tool| tool.name == name);
        let tool = tool.ok_or_else(|| no_such_tool(name))?;
        let given = Given {
            arguments: given,
            schema: Value::Object((*tool.input_schema).clone()),
        };
        Ok(match name {
            "search" => self.search(caller, given).await,
            "get_note" => self.get_note(caller, given).await,
            "find_duplicates" => self.find_duplicates(caller, given).await,
            "add_note" => self.add_note(&caller, given).await,
            "update_note" => self.update_note(caller, given).await,
            "delete_note" => self.delete_note(caller, given).await,
            unknown => return Err(no_such_tool(unknown)),
        })
    }

    async fn search(&self, caller: Caller, given: Given) -> Result<Value, ApiError> {
        let found = searches::search(State(self.0.clone()), caller, Body(given.read()?));
        Ok(fitting(found.await?, &["text", "context"]))
    }

    async fn get_note(&self, caller: Caller, given: Given) -> Result<Value, ApiError> {
        part::show(&self.0, &caller, given.read()?).await
    }

    async fn find_duplicates(&self, caller: Caller, given: Given) -> Result<Value, ApiError> {
        let found = duplicates::find(State(self.0.clone()), caller, Body(given.read()?));
        Ok(fitting(found.await?, &[]))
    }

    async fn add_note(&self, caller: &Caller, given: Given) -> Result<Value, ApiError> {
        caller.check_may_write()?;
        let added = notes::put_all(&self.0, caller, vec![given.read()?])
            .await?
            .note_ids;
        let indexed = wait::is_indexed_in_time(&self.0, caller, &added).await;
        Ok(json!({ "note_id": added[0], "indexed": indexed }))
    }

    async fn update_note(&self, caller: Caller, given: Given) -> Result<Value, ApiError> {
        caller.check_may_write()?;
        let asked: change::UpdateRequest = given.read()?;
        let (id, change) = asked.read(&self.0, &caller).await?;
        notes::change_one(&self.0, &caller, id, change).await?;
        let indexed = wait::is_indexed_in_time(&self.0, &caller, &[id]).await;
        Ok(json!({ "note_id": id, "indexed": indexed }))
    }

    async fn delete_note(&self, caller: Caller, given: Given) -> Result<Value, ApiError> {
        caller.check_may_write()?;
        let asked: change::DeleteRequest = given.read()?;
        let id = asked.note(&self.0, &caller).await?;
        notes::remove_one(&self.0, &caller, id).await?;
        Ok(json!({ "note_id": id, "deleted": true }))
    }
}

/// What a tool was called with.
struct Given {
    arguments: Value,
    schema: Value,
}

impl Given {
    fn read<T: DeserializeOwned>(self) -> Result<T, ApiError> {
        arguments::read(self.arguments, &self.schema)
    }
}

/// An answer whose `items` come without their fields `more`, or not at all, where they are too long.
fn fitting<T: Serialize>(Json(answer): Json<T>, more: &[&str]) -> Value {
    let mut answer = json!(answer);
    let items = match answer["items"].take() {
        Value::Array(items) => items,
        _ => Vec::new(),
    };
    let found = items.len();
    let rest = fit::MAX_COST.saturating_sub(fit::cost(&answer));
    let items = fit::items(items, more, rest);
    if items.len() < found {
        answer["left_out"] = json!(found - items.len());
    }
    answer["items"] = items.into();
    answer
}

fn caller(context: &RequestContext<RoleServer>) -> Result<Caller, ErrorData> {
    let head = context.extensions.get::<Parts>();
    let caller = head.and_then(|head| Caller::of(&head.extensions).ok());
    caller.ok_or_else(|| ErrorData::internal_error("the request has no key", None))
}

fn tool<T: ToSchema>(name: &'static str, description: &'static str) -> Tool {
    Tool::new(Cow::Borrowed(name), description, schema::of::<T>())
}
