//! The admin port: the page, its JSON API, health checks and metrics. In `api`, the HTTP API for
//! applications, on a port of its own.

pub mod api;
mod auth;
pub mod bounds;
mod clients;
mod connection;
mod dead;
mod kept;
mod paced;
mod page;
mod status;

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, header};
use axum::middleware::{Next, from_fn, from_fn_with_state, map_response};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_util::sync::CancellationToken;

use self::auth::Auth;
use crate::config::Service;
use crate::http::bounds::Bounds;
use crate::observe::Health;
use crate::observe::Observer;
use crate::telemetry::Metrics;

/// Requests of the page at once: each may wait for Postgres. Health and metrics do not.
const MAX_PAGE_REQUESTS: usize = 4;

/// How long a further one waits for its turn, as long as those that wait leave most connections.
const PLACE_WAIT: Duration = Duration::from_secs(2);

/// Time limit from the end of a request's head to its answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// The state that the admin port shows. The port is served before the worker starts, so that
/// the operator can see why a worker does not start.
pub struct Admin {
    metrics: Metrics,
    health: Arc<Health>,
    auth: Auth,
    observer: OnceLock<Arc<Observer>>,
}

impl Admin {
    /// The state of a process that is starting: checks and metrics, no observer yet.
    pub fn new(service: &Service, metrics: Metrics, health: Arc<Health>) -> Arc<Self> {
        Arc::new(Self {
            metrics,
            health,
            auth: Auth::new(service),
            observer: OnceLock::new(),
        })
    }

    /// Shows what `observer` sees, from now on. Called when the worker starts.
    pub fn show(&self, observer: Arc<Observer>) {
        // Keeps the first observer: a second worker in one process has no page of its own.
        let _ = self.observer.set(observer);
    }
}

/// Binds `service.admin_bind` and serves it in the background. Returns the bound address: with
/// port 0 the system chooses the port.
pub async fn serve(bind: &str, admin: Arc<Admin>, bounds: Bounds) -> std::io::Result<SocketAddr> {
    listen(bind, router(admin, bounds), bounds).await
}

/// Binds `bind` and serves the metrics alone, likewise.
pub async fn serve_metrics(
    bind: &str,
    admin: Arc<Admin>,
    bounds: Bounds,
) -> std::io::Result<SocketAddr> {
    let guard = from_fn_with_state(admin.clone(), auth::guard_health);
    let router = Router::new().route("/metrics", get(render)).layer(guard);
    listen(bind, router.with_state(admin), bounds).await
}

async fn listen(bind: &str, router: Router, bounds: Bounds) -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind(bind).await?;
    let address = listener.local_addr()?;
    let bounds = connection::Bounds {
        connections: bounds.admin_connections,
        request: REQUEST_TIMEOUT,
    };
    // It ends with the process: health is asked for until the end.
    let never = CancellationToken::new();
    tokio::spawn(connection::accept(listener, router, bounds, never));
    Ok(address)
}

fn router(admin: Arc<Admin>, bounds: Bounds) -> Router {
    let places = Arc::new(Places {
        free: Semaphore::new(MAX_PAGE_REQUESTS),
        waiting: Semaphore::new(bounds.admin_connections / 4),
    });
    let api = Router::new()
        .route("/api/status", get(status::show))
        .route("/api/dead", get(dead::list))
        .route("/api/dead/retry", post(dead::retry))
        .route("/api/dead/discard", post(dead::discard))
        .layer(from_fn_with_state(places, few))
        .layer(from_fn_with_state(admin.clone(), auth::guard));
    let health = Router::new()
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/metrics", get(render))
        .layer(from_fn_with_state(admin.clone(), auth::guard_health));
    let page = page::admin().layer(from_fn_with_state(admin.clone(), auth::guard_page));
    page.merge(health)
        .merge(api)
        .layer(from_fn(within_time))
        .layer(map_response(page::secure))
        .with_state(admin)
}

/// Places for requests of the page, and for those that wait for one.
struct Places {
    free: Semaphore,
    waiting: Semaphore,
}

impl Places {
    async fn take(&self) -> Option<SemaphorePermit<'_>> {
        let _waits = self.waiting.try_acquire().ok()?;
        let place = tokio::time::timeout(PLACE_WAIT, self.free.acquire()).await;
        place.ok()?.ok()
    }
}

/// Refuses a request while many others are answered: health needs connections too.
async fn few(State(places): State<Arc<Places>>, request: Request, next: Next) -> Response {
    let Some(_place) = places.take().await else {
        connection::refuse("requests");
        let what = "too many requests of the page are being answered: try again later";
        return problem(StatusCode::SERVICE_UNAVAILABLE, what).into_response();
    };
    next.run(request).await
}

/// Ends a request whose body never ends, or for which Postgres does not answer.
async fn within_time(request: Request, next: Next) -> Response {
    let what = match *request.method() {
        Method::GET => "the request took too long",
        _ => "the request took too long: what it asks for may be done, or be done later",
    };
    match tokio::time::timeout(REQUEST_TIMEOUT, next.run(request)).await {
        Ok(response) => response,
        Err(_) => problem(StatusCode::REQUEST_TIMEOUT, what).into_response(),
    }
}

async fn livez(State(admin): State<Arc<Admin>>) -> Response {
    match admin.observer.get() {
        Some(observer) if !observer.is_awake() => {
            (StatusCode::SERVICE_UNAVAILABLE, "stuck\n").into_response()
        }
        _ => "ok\n".into_response(),
    }
}

async fn readyz(State(admin): State<Arc<Admin>>) -> Response {
    let ready = admin.health.problem().is_none();
    let status = match ready {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    let body = json!({ "ready": ready, "checks": admin.health.checks() });
    (status, Json(body)).into_response()
}

async fn render(State(admin): State<Arc<Admin>>) -> Response {
    let content_type = "text/plain; version=0.0.4; charset=utf-8";
    (
        [(header::CONTENT_TYPE, content_type)],
        admin.metrics.render(),
    )
        .into_response()
}

/// An error answer, as JSON.
type Problem = (StatusCode, Json<Value>);

fn problem(status: StatusCode, what: impl std::fmt::Display) -> Problem {
    (status, Json(json!({ "error": what.to_string() })))
}
