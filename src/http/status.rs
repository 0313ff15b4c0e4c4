//! Everything that the page shows except dead letters, in one answer.

use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::extract::State;
use chrono::Utc;
use serde_json::{Value, json};

use super::Admin;
use crate::embed::provider::{CircuitState, Provider};
use crate::observe::{Observer, Seen};

/// Answers from the observer's latest state, without a query to Postgres or the engine.
pub async fn show(State(admin): State<Arc<Admin>>) -> Json<Value> {
    let mut status = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "now": Utc::now(),
        "can_change": admin.auth.can_change(),
        "ready": admin.health.problem().is_none(),
        "checks": admin.health.checks(),
        "engine": null, "embedding_version": null, "alias": null, "holder": null,
        "started_at": null, "observed_at": null, "outbox": null, "notes": null,
        "provider": null, "worker": null, "collections": [], "versions": [], "job": null,
        "drift": null, "history": null,
    });
    if let (Some(observer), Value::Object(status)) = (admin.observer.get(), &mut status)
        && let Value::Object(seen) = of(observer)
    {
        status.extend(seen);
    }
    Json(status)
}

fn of(observer: &Observer) -> Value {
    let Observer {
        pipeline, worker, ..
    } = observer;
    let totals = worker.totals();
    let Seen {
        at,
        outbox,
        table,
        notes,
        collections,
        versions,
        job,
        history,
        ..
    } = observer.seen();
    let versions: Vec<Value> = versions
        .iter()
        .map(|known| json!({ "name": known.version.name, "state": known.state, "since": known.state_since }))
        .collect();
    let outbox = outbox.map(|outbox| {
        let mut outbox = json!(outbox);
        outbox["dead_tuples"] = json!(table.map(|table| table.dead_tuples));
        outbox["size_bytes"] = json!(table.map(|table| table.size_bytes));
        outbox
    });
    json!({
        "engine": pipeline.serving.index.describe(),
        "embedding_version": pipeline.version.name,
        "alias": pipeline.serving.alias,
        "holder": worker.holder(),
        "started_at": observer.started_at,
        "observed_at": at,
        "outbox": outbox,
        "notes": notes,
        "lock_waits": pipeline.serving.store.recent_lock_waits(),
        "provider": provider(&pipeline.provider, totals.tokens, totals.tokens_saved),
        "worker": {
            "notes": totals.notes,
            "chunks": totals.chunks,
            "embedded": totals.embedded,
            "reused": totals.reused,
            "points": totals.points,
            "failed": totals.failed,
            "dead": totals.dead,
            "tokens": totals.tokens,
            "tokens_saved": totals.tokens_saved,
            "seconds": totals.seconds,
            "batches_in_flight": worker.in_flight(),
            "paused": worker.outage(),
        },
        "collections": collections,
        "versions": versions,
        "job": job,
        "drift": worker.verified(),
        "history": history,
    })
}

fn provider(provider: &Provider, tokens: u64, tokens_saved: u64) -> Value {
    let state = provider.state();
    let (name, probe_in_secs) = match &state {
        CircuitState::Closed => ("closed", None),
        CircuitState::Open { probe_at, .. } => {
            let left = probe_at.saturating_duration_since(Instant::now());
            ("open", Some(left.as_secs_f64()))
        }
        CircuitState::HalfOpen { .. } => ("half_open", None),
    };
    let cost = provider.usd_per_token().map(|usd| usd * tokens as f64);
    json!({
        "state": name,
        "reason": state.error().map(|error| error.reason()),
        "probe_in_secs": probe_in_secs,
        "model": provider.model(),
        "tokens": tokens,
        "tokens_saved": tokens_saved,
        "cost_usd": cost,
    })
}
