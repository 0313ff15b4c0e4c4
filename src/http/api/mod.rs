//! The HTTP API for applications: searches and notes, under `/v2`, and for agents: `/mcp`.
//!
//! Every request has a key ([`auth`]), and reaches the notes of that key alone. Every error
//! has the shape of [`error::ApiError`].

mod auth;
mod body;
mod duplicates;
mod error;
mod keyed;
mod listed;
pub mod mcp;
mod misfit;
mod notes;
mod places;
mod refused;
mod searches;
mod trace_log;
mod traces;
mod wait;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use uuid::Uuid;

use super::connection;
use super::page;
use crate::canary::Canary;
use crate::http::bounds::Bounds;
use crate::search::Searcher;
use crate::store::{Lifecycle, RegisteredVersion, Store};
use auth::BearerKey;
use auth::Lookups;
pub use auth::new_secret;
use body::{Body, BodyLimit, MAX_SMALL_BODY};
use error::ApiError;
use places::Places;
use refused::Refused;
use trace_log::TraceLog;

/// Time limit for a request. Longer than a body, a write and [`wait::LONGEST_WAIT`] together: a
/// write that was committed must not be answered with an error.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(75);

/// How long an answer of `/readyz` holds.
const READINESS_HOLDS: Duration = Duration::from_secs(1);

/// Time limit for Postgres to say whether this process is ready.
const READY_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a process that stops waits for its last records of searches.
const RECORD_TIMEOUT: Duration = Duration::from_secs(5);

/// JSON and escapes around the text of a note.
const BODY_MARGIN: usize = 64 << 10;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// What the API works with.
pub struct Api {
    /// Postgres, with connections of its own: searches do not take those of the worker.
    pub store: Store,
    pub searcher: Searcher,
    /// Lets a version that is built answer a share of the searches.
    pub canary: Option<Arc<Canary>>,
    /// The version that is served.
    pub version: String,
    /// Most bytes of a note's text.
    pub max_note_bytes: u64,
    /// What its clients share.
    pub bounds: Bounds,
    /// How many days searches are recorded for; 0 records none.
    pub trace_days: u32,
}

struct Shared {
    api: Api,
    places: Places,
    traces: TraceLog,
    lookups: Lookups,
    refused: Refused,
    /// When it was looked, and what is missing.
    readiness: Mutex<Option<(Instant, Option<&'static str>)>>,
    /// Whether requests that only wait should end.
    stop: CancellationToken,
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "ELF",
        description = "Notes of an application, searchable by meaning and by keyword. A request \
                       sends a key of `elf key create` as `Authorization: Bearer elf_…` and \
                       reaches the notes of that key alone."
    ),
    modifiers(&BearerKey),
    security(("key" = []))
)]
struct Description;

/// Binds `service.http_bind` and serves the API until `stop`. Then requests in flight end, and
/// the last searches are recorded. The handle ends after that.
pub async fn serve(
    bind: &str,
    api: Api,
    stop: CancellationToken,
) -> std::io::Result<(SocketAddr, AbortOnDropHandle<()>)> {
    let listener = TcpListener::bind(bind).await?;
    let address = listener.local_addr()?;
    let bounds = connection::Bounds {
        connections: api.bounds.api_connections,
        request: REQUEST_TIMEOUT,
    };
    let forgetting = trace_log::forget(api.store.clone(), api.trace_days);
    let forgetting = AbortOnDropHandle::new(tokio::spawn(forgetting));
    let (traces, recording) = TraceLog::start(&api);
    let lookups = Lookups::of(&api.store).await;
    let app = router(api, lookups, traces, stop.clone());
    let serving = tokio::spawn(async move {
        connection::accept(listener, app, bounds, stop).await;
        drop(forgetting);
        let _ = tokio::time::timeout(RECORD_TIMEOUT, recording).await;
    });
    Ok((address, AbortOnDropHandle::new(serving)))
}

fn router(api: Api, lookups: Lookups, traces: TraceLog, stop: CancellationToken) -> Router {
    let body_limit = usize::try_from(api.max_note_bytes).unwrap_or(usize::MAX) + BODY_MARGIN;
    let shared = Arc::new(Shared {
        places: Places::new(api.bounds),
        api,
        traces,
        lookups,
        refused: Refused::default(),
        readiness: Mutex::default(),
        stop,
    });
    let (routes, description) = OpenApiRouter::with_openapi(Description::openapi())
        .routes(routes!(searches::search))
        .routes(routes!(traces::show))
        .routes(routes!(traces::read_notes))
        .routes(routes!(traces::show_trace))
        .routes(routes!(traces::show_item))
        .routes(routes!(duplicates::find))
        .routes(routes!(listed::list))
        .routes(routes!(listed::delete))
        .routes(routes!(notes::chunks))
        .layer(Extension(BodyLimit(MAX_SMALL_BODY)))
        .merge(
            OpenApiRouter::new()
                .routes(routes!(
                    notes::add,
                    notes::put,
                    keyed::show,
                    keyed::change,
                    keyed::remove
                ))
                .routes(routes!(notes::show, notes::change, notes::remove))
                .layer(Extension(BodyLimit(body_limit))),
        )
        .split_for_parts();
    let routes = routes.merge(mcp::router(&shared));
    // Made once, for whoever asks: this needs no key.
    let description = Bytes::from(json!(description).to_string());
    let head = [(header::CONTENT_TYPE, "application/json")];
    let described = get(async move || (head, description.clone()).into_response());
    routes
        .layer(from_fn_with_state(shared.clone(), auth::admit))
        .layer(from_fn(limited))
        .layer(tower_http::compression::CompressionLayer::new())
        .route("/openapi.json", described)
        .merge(page::api())
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .fallback(async || ApiError::not_found("no such path: see /openapi.json"))
        .method_not_allowed_fallback(async || {
            ApiError::new(
                StatusCode::METHOD_NOT_ALLOWED,
                "method_not_allowed",
                "this path has other methods: see /openapi.json",
            )
        })
        .layer(DefaultBodyLimit::disable())
        .layer(from_fn(identified))
        .with_state(shared)
}

/// Whether searches can be answered: they need Postgres and the version of this process, and do
/// without the rest. Postgres is asked once a second at most, because this needs no key.
async fn readyz(State(shared): State<Arc<Shared>>) -> Response {
    let mut known = shared.readiness.lock().await;
    let problem = match *known {
        Some((at, problem)) if at.elapsed() < READINESS_HOLDS => problem,
        _ => {
            let problem = unreadiness(&shared.api).await;
            *known = Some((Instant::now(), problem));
            problem
        }
    };
    match problem {
        None => "ready\n".into_response(),
        Some(problem) => (StatusCode::SERVICE_UNAVAILABLE, problem).into_response(),
    }
}

async fn unreadiness(Api { store, version, .. }: &Api) -> Option<&'static str> {
    let is_active = |known: &RegisteredVersion| {
        known.state == Lifecycle::Active && known.version.name == *version
    };
    match tokio::time::timeout(READY_TIMEOUT, store.versions()).await {
        Ok(Ok(known)) if known.iter().any(is_active) => None,
        Ok(Ok(_)) => Some("the embedding version of this process is not active\n"),
        _ => Some("Postgres is unavailable\n"),
    }
}

/// Ends a request that takes too long.
async fn limited(request: Request, next: Next) -> Response {
    let may_write = may_write(request.method(), request.uri().path());
    match tokio::time::timeout(REQUEST_TIMEOUT, next.run(request)).await {
        Ok(response) => response,
        Err(_) if may_write => ApiError::outcome_unknown().into_response(),
        Err(_) => ApiError::unavailable("the request took too long").into_response(),
    }
}

fn may_write(method: &Method, path: &str) -> bool {
    let is_note =
        path == "/v2/notes" || path.starts_with("/v2/notes/") || path == "/v2/notes:delete";
    method != Method::GET && (is_note || path == "/mcp")
}

/// Gives every request an id, which its answer and its log lines have. A client may choose it. No answer is kept by a
/// cache or taken for a page: it may have the text of notes.
async fn identified(request: Request, next: Next) -> Response {
    let is_usable = |id: &&HeaderValue| id.len() <= 128 && id.to_str().is_ok();
    let id = request.headers().get(REQUEST_ID).filter(is_usable).cloned();
    let id = id.unwrap_or_else(|| {
        let id = Uuid::new_v4().to_string();
        HeaderValue::from_str(&id).expect("a UUID is printable")
    });
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let span = tracing::info_span!("request", id = ?id, %method, path);
    let mut response = next.run(request).instrument(span).await;
    let headers = response.headers_mut();
    headers.insert(REQUEST_ID, id);
    for (name, value) in [
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}
