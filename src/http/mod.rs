//! The admin port: the page for people, its JSON, and what monitors ask for.

mod access;
mod connection;
mod dead;
mod page;
mod status;

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn, from_fn_with_state, map_response};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::json;
use tokio::net::TcpListener;

use self::access::Access;
use crate::config::Service;
use crate::observe::Health;
use crate::observe::Observer;
use crate::telemetry::Metrics;

/// From the last byte of a request's head to its answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// What the admin port shows. It is served before the worker can begin, so that somebody
/// who wonders why it does not can look.
pub struct Admin {
    metrics: Metrics,
    health: Arc<Health>,
    access: Access,
    observer: OnceLock<Arc<Observer>>,
}

impl Admin {
    /// The page of a process that is starting.
    pub fn new(service: &Service, metrics: Metrics, health: Arc<Health>) -> Arc<Self> {
        Arc::new(Self {
            metrics,
            health,
            access: Access::new(service),
            observer: OnceLock::new(),
        })
    }

    /// The worker has begun: this is what it sees.
    pub fn show(&self, observer: Arc<Observer>) {
        // A second worker in one process has no page of its own.
        let _ = self.observer.set(observer);
    }
}

/// Binds `service.admin_bind` and serves it in the background. Returns the address, which
/// is only known then where the port is 0.
pub async fn serve(bind: &str, admin: Arc<Admin>) -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind(bind).await?;
    let address = listener.local_addr()?;
    tokio::spawn(connection::accept(listener, router(admin)));
    Ok(address)
}

fn router(admin: Arc<Admin>) -> Router {
    let api = Router::new()
        .route("/api/status", get(status::show))
        .route("/api/dead", get(dead::list))
        .route("/api/dead/retry", post(dead::retry))
        .route("/api/dead/discard", post(dead::discard))
        .layer(from_fn_with_state(admin.clone(), access::guard));
    let health = Router::new()
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/metrics", get(render))
        .layer(from_fn_with_state(admin.clone(), access::guard_health));
    let page = page::routes().layer(from_fn_with_state(admin.clone(), access::guard_page));
    page.merge(health)
        .merge(api)
        .layer(from_fn(within_time))
        .layer(map_response(page::secure))
        .with_state(admin)
}

/// A body that never ends, or a Postgres that does not answer, keeps no connection.
async fn within_time(request: Request, next: Next) -> Response {
    match tokio::time::timeout(REQUEST_TIMEOUT, next.run(request)).await {
        Ok(response) => response,
        Err(_) => problem(StatusCode::REQUEST_TIMEOUT, "the request took too long"),
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

/// An answer that says what failed.
fn problem(status: StatusCode, what: impl std::fmt::Display) -> Response {
    (status, Json(json!({ "error": what.to_string() }))).into_response()
}
