//! `?wait=indexed`: a write is answered when the index has it.

use std::time::Duration;

use axum::Json;
use axum::extract::Query;
use axum::extract::rejection::QueryRejection;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use super::auth::Caller;
use super::error::ApiError;
use super::misfit::misfit;
use super::{Api, Shared};

/// How long `?wait=indexed` waits.
pub const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// When it looks first. Each further pause is twice as long.
const FIRST_LOOK: Duration = Duration::from_millis(20);

/// The longest of these pauses.
const LAST_LOOK: Duration = Duration::from_secs(1);

/// What a request waits for.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Wait {
    /// `indexed`: answer when the index has the change, or after 30 seconds, or while too many requests wait, with 202.
    pub wait: Option<String>,
}

impl Wait {
    fn is_asked(&self) -> Result<bool, ApiError> {
        match self.wait.as_deref() {
            None => Ok(false),
            Some("indexed") => Ok(true),
            Some(other) => {
                let message = format!("wait must be \"indexed\", not {other:?}");
                Err(ApiError::invalid("wait", message))
            }
        }
    }
}

/// Notes that were written.
#[derive(Debug, Serialize, ToSchema)]
pub struct Written {
    note_ids: Vec<Uuid>,
    /// Whether the index has the notes; always `false` without `wait=indexed`.
    indexed: bool,
}

/// Whether a request waits.
pub fn asked(wait: Result<Query<Wait>, QueryRejection>) -> Result<bool, ApiError> {
    let Query(wait) = wait.map_err(|error| misfit(&error.body_text(), "query"))?;
    wait.is_asked()
}

/// Waits for the index if that is asked for. The change is committed, so this is never an error.
pub async fn written(
    shared: &Shared,
    caller: &Caller,
    note_ids: Vec<Uuid>,
    is_waiting: bool,
    done: StatusCode,
) -> Response {
    let indexed = is_waiting && is_indexed_in_time(shared, caller, &note_ids).await;
    let status = match is_waiting && !indexed {
        true => StatusCode::ACCEPTED,
        false => done,
    };
    (status, Json(Written { note_ids, indexed })).into_response()
}

/// Waits until the index has all of the notes, for at most [`LONGEST_WAIT`]. While too many
/// requests wait, it does not.
pub async fn is_indexed_in_time(shared: &Shared, caller: &Caller, notes: &[Uuid]) -> bool {
    let Some(_place) = shared.places.waiting(caller) else {
        return false;
    };
    let waiting = wait_until_indexed(shared, notes);
    let waited = tokio::time::timeout(LONGEST_WAIT, waiting).await;
    waited.unwrap_or(false)
}

/// Whether the index has all of the notes, once no worker has to do anything for them.
async fn wait_until_indexed(shared: &Shared, notes: &[Uuid]) -> bool {
    let Api { store, version, .. } = &shared.api;
    let mut pause = FIRST_LOOK;
    loop {
        match store.notes_waiting(notes, version).await {
            Ok((0, dead)) => return dead == 0,
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "failed to look whether notes are indexed"),
        }
        let stop = shared.stop.cancelled();
        if tokio::time::timeout(pause, stop).await.is_ok() {
            return false;
        }
        pause = (pause * 2).min(LAST_LOOK);
    }
}
