//! The admin port: `/metrics`, `/livez`, `/readyz`.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::telemetry::Metrics;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use serde::Serialize;
use tokio::net::TcpListener;

use crate::embed::provider::Provider;
use crate::index::VectorIndex;
use crate::store::Store;
use crate::worker::Worker;

/// What the admin port looks at.
pub struct Admin {
    /// Renders the metrics.
    pub metrics: Metrics,
    /// Is asked whether it answers.
    pub store: Store,
    /// Is asked what the alias points at.
    pub index: Arc<dyn VectorIndex>,
    /// The alias that searches go through.
    pub alias: String,
    /// Is asked whether it is away.
    pub provider: Arc<Provider>,
    /// Is asked whether it has paused.
    pub worker: Arc<Worker>,
}

/// What `/readyz` says of one thing that ELF depends on.
#[derive(Debug, Serialize)]
struct Check {
    name: &'static str,
    ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// Binds the admin port and serves it in the background. Returns the address,
/// which `service.admin_bind` leaves open when its port is 0.
pub async fn serve(bind: &str, admin: Admin) -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind(bind).await?;
    let address = listener.local_addr()?;
    let app = Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(render))
        .with_state(Arc::new(admin));
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, app).await {
            tracing::error!(%error, "the admin port is closed");
        }
    });
    Ok(address)
}

async fn render(State(admin): State<Arc<Admin>>) -> impl IntoResponse {
    let outbox = admin.store.outbox_counts(None).await;
    if let Ok(counts) = outbox {
        for (state, rows) in [
            ("pending", counts.pending),
            ("leased", counts.leased),
            ("failed", counts.failed),
            ("dead", counts.dead),
        ] {
            metrics::gauge!("elf_outbox_rows", "state" => state).set(rows as f64);
        }
        let oldest = counts.oldest_pending_secs.unwrap_or(0.0);
        metrics::gauge!("elf_outbox_oldest_pending_seconds").set(oldest);
    }
    let content_type = "text/plain; version=0.0.4; charset=utf-8";
    (
        [(header::CONTENT_TYPE, content_type)],
        admin.metrics.render(),
    )
}

async fn readyz(State(admin): State<Arc<Admin>>) -> impl IntoResponse {
    let checks = [
        check(
            "postgres",
            admin.store.ping().await.err().map(|e| e.to_string()),
        ),
        check("index", index_problem(&admin).await),
        check(
            "provider",
            admin.provider.state().error().map(|e| e.to_string()),
        ),
        check(
            "worker",
            admin
                .worker
                .outage()
                .map(|o| format!("{} (since {})", o.reason, o.since)),
        ),
    ];
    let ready = checks.iter().all(|c| c.ok);
    let status = if ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (
        status,
        axum::Json(serde_json::json!({ "ready": ready, "checks": checks })),
    )
}

async fn index_problem(admin: &Admin) -> Option<String> {
    match admin.index.resolve(&admin.alias).await {
        Ok(Some(_)) => None,
        Ok(None) => Some(format!("the alias {:?} points at nothing", admin.alias)),
        Err(error) => Some(error.to_string()),
    }
}

fn check(name: &'static str, reason: Option<String>) -> Check {
    Check {
        name,
        ok: reason.is_none(),
        reason,
    }
}
