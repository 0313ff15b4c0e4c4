//! `/mcp`: the Model Context Protocol over streamable HTTP, for agents.
//! <https://modelcontextprotocol.io/specification>
//!
//! A tool does what the route of the same purpose does, under the same key: the notes that an
//! agent reaches are those of its key. Each request stands alone, the server keeps no session.

use std::borrow::Cow;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, Implementation, JsonObject,
    ListToolsResult, PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool,
    ToolAnnotations,
};
use rmcp::service::RequestContext;
use rmcp::transport::StreamableHttpServerConfig;
use rmcp::transport::StreamableHttpService;
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;
use uuid::Uuid;

use super::access::Caller;
use super::body::read_in_time;
use super::error::{ApiError, ErrorBody};
use super::misfit::misfit;
use super::notes::NoteId;
use super::{Body, MAX_SMALL_BODY, Shared, duplicates, notes, searches, wait};

/// What a model reads before it uses the tools.
const INSTRUCTIONS: &str = "Notes of one tenant. Use `search` to find notes by meaning and by \
                            keyword; each result has the passage that matched and the text around \
                            it. `add_note` answers when a search can find the note.";

/// Most bytes of a request with a key that may write. Longer notes come by `POST /v2/notes`.
const MAX_BODY: usize = 256 << 10;

/// How many times as much memory as its bytes a parsed message may take.
const PARSED: u64 = 100;

/// The route.
pub(super) fn router(shared: &Arc<Shared>) -> Router<Arc<Shared>> {
    let tools = Tools(shared.clone());
    let settings = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        .with_json_response(true)
        .with_max_request_body_bytes(MAX_BODY)
        // Only who sends a key is answered, which a page that rebinds its name cannot.
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

/// Reads the body within the limits of the other routes.
async fn bounded(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    request: Request,
    next: Next,
) -> Response {
    let (head, body) = request.into_parts();
    let limit = match caller.key.can_write {
        true => MAX_BODY,
        false => MAX_SMALL_BODY,
    };
    match read_in_time(&shared, &caller, body, limit, PARSED).await {
        Ok(bytes) => next.run(Request::from_parts(head, bytes.into())).await,
        Err(error) => error.into_response(),
    }
}

/// The id of a note.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NoteRequest {
    note_id: Uuid,
}

/// What the server says of itself.
pub fn info() -> ServerConfig {
    let capabilities = ServerCapabilities::builder().enable_tools().build();
    ServerConfig::new(capabilities)
        .with_server_info(Implementation::new("elf", env!("CARGO_PKG_VERSION")))
        .with_instructions(INSTRUCTIONS)
}

/// The tools. `add_note` is for keys that may write.
pub fn tools() -> Vec<Tool> {
    let reading = |tool: Tool| tool.with_annotations(ToolAnnotations::new().read_only(true));
    vec![
        reading(tool::<searches::SearchRequest>(
            "search",
            "Find notes by meaning and by keyword. Returns the best notes, best first, each with \
             the passage that matched and the text around it.",
        )),
        reading(tool::<NoteRequest>("get_note", "Read a note by its id.")),
        reading(tool::<duplicates::DuplicatesRequest>(
            "find_duplicates",
            "Find notes that say nearly the same as a note.",
        )),
        tool::<notes::NewNote>(
            "add_note",
            "Add a note. Waits up to 30 seconds until a search can find it, and says in `indexed` \
             whether one can.",
        ),
    ]
}

/// The answer to a call of another tool than those of [`tools`].
pub fn no_such_tool(name: &str) -> ErrorData {
    let message =
        format!("no such tool: {name:?}; there are search, get_note, find_duplicates, add_note");
    ErrorData::invalid_params(message, None)
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
        let mut tools = tools();
        if !caller(&context)?.key.can_write {
            tools.retain(|tool| tool.name != "add_note");
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
        let Some(result) = context.ct.run_until_cancelled(calling).await else {
            return Err(ErrorData::internal_error("the client has gone", None));
        };
        // A model can read the error of a tool and correct its call.
        let result = match result? {
            Ok(answer) => CallToolResult::structured(answer),
            Err(error) => CallToolResult::structured_error(json!(ErrorBody::from(error))),
        };
        Ok(result.into())
    }
}

impl Tools {
    async fn call(
        &self,
        caller: Caller,
        tool: &str,
        given: Value,
    ) -> Result<Result<Value, ApiError>, ErrorData> {
        Ok(match tool {
            "search" => self.search(caller, given).await,
            "get_note" => self.get_note(caller, given).await,
            "find_duplicates" => self.find_duplicates(caller, given).await,
            "add_note" => self.add_note(&caller, given).await,
            unknown => return Err(no_such_tool(unknown)),
        })
    }

    async fn search(&self, caller: Caller, given: Value) -> Result<Value, ApiError> {
        let request = Body(arguments(given)?);
        let found = searches::search(State(self.0.clone()), caller, request);
        Ok(answer(found.await?))
    }

    async fn get_note(&self, caller: Caller, given: Value) -> Result<Value, ApiError> {
        let NoteRequest { note_id } = arguments(given)?;
        let note = notes::show(State(self.0.clone()), caller, NoteId(note_id));
        Ok(answer(note.await?))
    }

    async fn find_duplicates(&self, caller: Caller, given: Value) -> Result<Value, ApiError> {
        let request = Body(arguments(given)?);
        let found = duplicates::find(State(self.0.clone()), caller, request);
        Ok(answer(found.await?))
    }

    async fn add_note(&self, caller: &Caller, given: Value) -> Result<Value, ApiError> {
        caller.check_may_write()?;
        let note = arguments(given)?;
        let added = notes::add_all(&self.0, caller, vec![note]).await?;
        let indexed = wait::is_indexed_in_time(&self.0, caller, &added).await;
        Ok(json!({ "note_id": added[0], "indexed": indexed }))
    }
}

fn answer<T: Serialize>(Json(answer): Json<T>) -> Value {
    json!(answer)
}

/// Who called.
fn caller(context: &RequestContext<RoleServer>) -> Result<Caller, ErrorData> {
    let head = context.extensions.get::<Parts>();
    let caller = head.and_then(|head| Caller::of(&head.extensions).ok());
    caller.ok_or_else(|| ErrorData::internal_error("the request has no key", None))
}

/// As from a body, so that an error names its field.
fn arguments<T: DeserializeOwned>(given: Value) -> Result<T, ApiError> {
    let read = Json::<T>::from_bytes(given.to_string().as_bytes());
    let Json(arguments) = read.map_err(|error| misfit(&error.body_text(), "arguments"))?;
    Ok(arguments)
}

fn tool<T: ToSchema>(name: &'static str, description: &'static str) -> Tool {
    Tool::new(Cow::Borrowed(name), description, schema::<T>())
}

/// The JSON schema of a request. The description of the API refers to the parts of a schema, here
/// they are in the schema itself.
fn schema<T: ToSchema>() -> JsonObject {
    let mut parts = Vec::new();
    T::schemas(&mut parts);
    let mut schema = json!(T::schema());
    schema["$defs"] = parts
        .into_iter()
        .map(|(name, part)| (name, json!(part)))
        .collect();
    let schema = schema
        .to_string()
        .replace("#/components/schemas/", "#/$defs/");
    serde_json::from_str(&schema).expect("the schema of a struct is an object")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_of_a_tool_stands_alone() {
        let schema = Value::Object(schema::<searches::SearchRequest>());
        assert_eq!(schema["type"], "object");
        assert_eq!(schema["properties"]["query"]["type"], "string");
        let text = schema.to_string();
        for (at, _) in text.match_indices("#/") {
            let name = text[at..].split('"').next().unwrap_or_default();
            assert!(
                schema.pointer(&name[1..]).is_some(),
                "{name} is nowhere in {schema:#}"
            );
        }
        assert!(text.contains("#/$defs/NoteFilter"), "{text}");
    }
}
