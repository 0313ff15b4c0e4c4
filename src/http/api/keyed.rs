//! `/v2/notes?key=…`: a note by the application's own name for it.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{FromRequestParts, Query, State};
use axum::http::request::Parts;
use axum::response::Response;
use serde::Deserialize;
use utoipa::IntoParams;
use uuid::Uuid;

use super::auth::{Caller, Writer};
use super::error::{ApiError, ErrorBody};
use super::misfit::misfit;
use super::notes::{self, NoteId, check_labels, no_note};
use super::wait::{Wait, Written};
use super::{Body, Shared};
use crate::store::{NoteChange, ReachableNote};

/// The key of a note, and the labels in which it is unique.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Key {
    /// The application's own name for the note.
    pub key: String,
    /// Without it, the project that the key of the API is bound to, or `default`.
    pub project_id: Option<String>,
    /// Without it, the agent that the key of the API is bound to, or `default`.
    pub agent_id: Option<String>,
    /// Without it, `shared`.
    pub scope: Option<String>,
    /// `indexed`: answer a write when the index has it, as for a note by its id.
    pub wait: Option<String>,
}

impl<S: Send + Sync> FromRequestParts<S> for Key {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let key: Result<Query<Self>, QueryRejection> =
            Query::from_request_parts(parts, state).await;
        let Query(key) = key.map_err(|error| misfit(&error.body_text(), "query"))?;
        Ok(key)
    }
}

impl Key {
    fn waiting(&mut self) -> Query<Wait> {
        let wait = self.wait.take();
        Query(Wait { wait })
    }

    /// The note that has the key.
    pub async fn note(self, shared: &Shared, caller: &Caller) -> Result<Uuid, ApiError> {
        check_labels([
            ("key", Some(self.key.as_str())),
            ("project_id", self.project_id.as_deref()),
            ("agent_id", self.agent_id.as_deref()),
            ("scope", self.scope.as_deref()),
        ])?;
        let or_default = |label: Option<String>| label.unwrap_or_else(|| "default".into());
        let project = or_default(caller.project(self.project_id)?);
        let agent = or_default(caller.agent(self.agent_id)?);
        let scope = self.scope.unwrap_or_else(notes::shared);
        let labels = [&*project, &*agent, &*scope];
        let store = &shared.api.store;
        let found = store.note_of_key(caller.reach(), labels, &self.key).await?;
        found.ok_or_else(no_note)
    }
}

/// Show the note that has a key
#[utoipa::path(
    get,
    path = "/v2/notes",
    tag = "notes",
    operation_id = "get_note_by_key",
    params(Key),
    responses(
        (status = 200, body = ReachableNote),
        (status = 401, description = "No key, or one that was revoked", body = ErrorBody),
        (status = 403, description = "The key is bound to other labels", body = ErrorBody),
        (status = 404, description = "The key of the API reaches no note of this key", body = ErrorBody),
        (status = 422, description = "A parameter is missing or has a wrong value", body = ErrorBody),
    )
)]
pub async fn show(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    key: Key,
) -> Result<Json<ReachableNote>, ApiError> {
    let id = key.note(&shared, &caller).await?;
    notes::show(State(shared), caller, NoteId(id)).await
}

/// Change the note that has a key
#[utoipa::path(
    patch,
    path = "/v2/notes",
    tag = "notes",
    operation_id = "change_note_by_key",
    params(Key),
    request_body = NoteChange,
    responses(
        (status = 200, body = Written),
        (status = 202, description = "Changed, and not indexed within 30 seconds", body = Written),
        (status = 401, description = "No key, or one that was revoked", body = ErrorBody),
        (status = 403, description = "The key may only read, or is bound to other labels", body = ErrorBody),
        (status = 404, description = "The key of the API reaches no note of this key", body = ErrorBody),
        (status = 409, description = "Another note has the key, or the note follows a row", body = ErrorBody),
        (status = 422, description = "A field is unknown or has a wrong value", body = ErrorBody),
        (status = 503, description = "Not written, or with the code `outcome_unknown`: it may have been written", body = ErrorBody),
    )
)]
pub async fn change(
    State(shared): State<Arc<Shared>>,
    Writer(caller): Writer,
    mut key: Key,
    body: Body<NoteChange>,
) -> Result<Response, ApiError> {
    let wait = key.waiting();
    let id = key.note(&shared, &caller).await?;
    notes::change(State(shared), Writer(caller), NoteId(id), Ok(wait), body).await
}

/// Delete the note that has a key
#[utoipa::path(
    delete,
    path = "/v2/notes",
    tag = "notes",
    operation_id = "delete_note_by_key",
    params(Key),
    responses(
        (status = 200, body = Written),
        (status = 202, description = "Deleted, and not removed from the index within 30 seconds; no search shows it", body = Written),
        (status = 401, description = "No key, or one that was revoked", body = ErrorBody),
        (status = 403, description = "The key may only read, or is bound to other labels", body = ErrorBody),
        (status = 404, description = "The key of the API reaches no note of this key", body = ErrorBody),
        (status = 409, description = "The note follows a row", body = ErrorBody),
        (status = 422, description = "A parameter is missing or has a wrong value", body = ErrorBody),
        (status = 503, description = "Not deleted, or with the code `outcome_unknown`: it may have been deleted", body = ErrorBody),
    )
)]
pub async fn remove(
    State(shared): State<Arc<Shared>>,
    Writer(caller): Writer,
    mut key: Key,
) -> Result<Response, ApiError> {
    let wait = key.waiting();
    let id = key.note(&shared, &caller).await?;
    notes::remove(State(shared), Writer(caller), NoteId(id), Ok(wait)).await
}
