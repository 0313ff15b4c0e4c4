//! Dead letters: list, retry, discard.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{ConnectInfo, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::json;
use uuid::Uuid;

use super::{Admin, problem};
use crate::store::{Store, StoreError};
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
pub async fn list(State(admin): State<Arc<Admin>>, Query(List { limit }): Query<List>) -> Response {
    let limit = limit.unwrap_or(50).min(MAX_LETTERS);
    let listed = async |store: &Store| {
        let items = store.dead_letters(limit.into()).await?;
        let total: i64 = store.dead_reasons().await?.iter().map(|(_, n)| n).sum();
        Ok(json!({ "items": items, "total": total.max(items.len() as i64) }))
    };
    match store(&admin) {
        Some(store) => answer(listed(store).await),
        None => starting(),
    }
}

/// Makes dead letters due again and resets their attempts.
pub async fn retry(
    State(admin): State<Arc<Admin>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    body: Result<Json<Which>, JsonRejection>,
) -> Response {
    let (store, which) = match (store(&admin), body) {
        (None, _) => return starting(),
        (_, Err(unreadable)) => return problem(StatusCode::BAD_REQUEST, unreadable),
        (Some(store), Ok(Json(which))) => (store, which),
    };
    let ids = match (which.all, which.ids.is_empty()) {
        (true, true) => None,
        (false, false) => Some(&which.ids[..]),
        _ => {
            return problem(
                StatusCode::BAD_REQUEST,
                "send either \"ids\" or \"all\": true",
            );
        }
    };
    let retried = store.retry_dead(ids).await;
    if let Ok(retried) = retried {
        tracing::warn!(
            target: AUDIT,
            %peer,
            retried,
            ids = ?which.ids,
            all = which.all,
            "dead letters retried from the admin page"
        );
    }
    answer(retried.map(|retried| json!({ "retried": retried })))
}

/// Deletes dead letters. Their notes stay in Postgres, and are not indexed until they change.
pub async fn discard(
    State(admin): State<Arc<Admin>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    body: Result<Json<Which>, JsonRejection>,
) -> Response {
    let (store, ids) = match (store(&admin), body) {
        (None, _) => return starting(),
        (_, Err(unreadable)) => return problem(StatusCode::BAD_REQUEST, unreadable),
        (Some(store), Ok(Json(Which { ids, all: false }))) if !ids.is_empty() => (store, ids),
        _ => {
            let what = "send the \"ids\" to discard; `elf dead purge --all` discards all";
            return problem(StatusCode::BAD_REQUEST, what);
        }
    };
    let discarded = store.purge_dead(Some(&ids)).await;
    if let Ok(discarded) = discarded {
        tracing::warn!(
            target: AUDIT,
            %peer,
            discarded,
            ?ids,
            "dead letters discarded from the admin page"
        );
    }
    answer(discarded.map(|discarded| json!({ "discarded": discarded })))
}

fn store(admin: &Admin) -> Option<&Store> {
    Some(admin.observer.get()?.store())
}

fn starting() -> Response {
    problem(
        StatusCode::SERVICE_UNAVAILABLE,
        "the worker is starting; /readyz says which check fails",
    )
}

fn answer(done: Result<serde_json::Value, StoreError>) -> Response {
    match done {
        Ok(body) => Json(body).into_response(),
        Err(error) => problem(StatusCode::SERVICE_UNAVAILABLE, error),
    }
}
