//! Dead letters: list, retry, discard.

use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{ConnectInfo, Query, State};
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{Admin, Problem, problem};
use crate::store::Store;
use crate::telemetry::AUDIT;

/// Bounds the size of one answer. `elf dead list` lists more.
const MAX_LETTERS: u32 = 500;

#[derive(Deserialize)]
pub struct List {
    limit: Option<u32>,
}

/// The dead letters that a request changes.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Which {
    #[serde(default)]
    ids: Vec<Uuid>,
    #[serde(default)]
    all: bool,
}

/// The latest dead letters, with the beginning of each text.
pub async fn list(
    State(admin): State<Arc<Admin>>,
    Query(List { limit }): Query<List>,
) -> Result<Json<Value>, Problem> {
    let limit = limit.unwrap_or(50).min(MAX_LETTERS);
    let store = store(&admin)?;
    let items = store.dead_letters(limit.into()).await.map_err(failed)?;
    let reasons = store.dead_reasons().await.map_err(failed)?;
    let total: i64 = reasons.iter().map(|(_, n)| n).sum();
    let total = total.max(items.len() as i64);
    Ok(Json(json!({ "items": items, "total": total })))
}

/// Makes dead letters due again and resets their attempts.
pub async fn retry(
    State(admin): State<Arc<Admin>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    body: Result<Json<Which>, JsonRejection>,
) -> Result<Json<Value>, Problem> {
    let store = store(&admin)?;
    let Json(Which { ids, all }) = body.map_err(wrong)?;
    let selected = match (all, ids.is_empty()) {
        (true, true) => None,
        (false, false) => Some(&ids[..]),
        _ => return Err(wrong("send either \"ids\" or \"all\": true")),
    };
    let retried = store.retry_dead(selected).await.map_err(failed)?;
    tracing::warn!(target: AUDIT, %peer, retried, ?ids, all, "dead letters retried from the admin page");
    Ok(Json(json!({ "retried": retried })))
}

/// Deletes dead letters. Their notes stay in Postgres, and are not indexed until they change.
pub async fn discard(
    State(admin): State<Arc<Admin>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    body: Result<Json<Which>, JsonRejection>,
) -> Result<Json<Value>, Problem> {
    let store = store(&admin)?;
    let Json(Which { ids, all }) = body.map_err(wrong)?;
    if all || ids.is_empty() {
        return Err(wrong(
            "send the \"ids\" to discard; `elf dead purge --all` discards all",
        ));
    }
    let discarded = store.purge_dead(Some(&ids)).await.map_err(failed)?;
    tracing::warn!(target: AUDIT, %peer, discarded, ?ids, "dead letters discarded from the admin page");
    Ok(Json(json!({ "discarded": discarded })))
}

fn store(admin: &Admin) -> Result<&Store, Problem> {
    let starting = "the worker is starting; /readyz says which check fails";
    let observer = admin.observer.get().ok_or_else(|| failed(starting))?;
    Ok(&observer.pipeline.serving.store)
}

fn wrong(what: impl Display) -> Problem {
    problem(StatusCode::BAD_REQUEST, what)
}

fn failed(what: impl Display) -> Problem {
    problem(StatusCode::SERVICE_UNAVAILABLE, what)
}
