//! `POST /v2/notes:list` and `POST /v2/notes:delete`: the notes that are as a filter says.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::auth::{Caller, Writer};
use super::error::{ApiError, ErrorBody};
use super::notes::check_labels;
use super::searches::{NoteFilter, check_limit};
use super::{Api, Body, Shared};
use crate::index::Filter;
use crate::store::{Listed, ReachableNote};

/// Most bytes of texts in a page.
const MAX_PAGE_BYTES: i64 = 4 << 20;

/// For how long a request looks through the notes of its tenant; the next one goes on.
const LIST_TIME: Duration = Duration::from_secs(5);
const DELETE_TIME: Duration = Duration::from_secs(20);

/// Which notes to list.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"filter": {"type": "ticket"}, "limit": 50}))]
pub struct ListRequest {
    /// Only notes like this, live or not.
    #[serde(default)]
    filter: NoteFilter,
    /// Only notes with this status.
    status: Option<String>,
    /// Notes to return at most, 1 to 100.
    #[serde(default = "hundred")]
    #[schema(default = 100, minimum = 1, maximum = 100)]
    limit: usize,
    /// The `next` of the page before.
    after: Option<Uuid>,
}

fn hundred() -> usize {
    100
}

/// A page of notes.
#[derive(Debug, Serialize, ToSchema)]
pub struct ListResponse {
    /// In the order of their ids.
    items: Vec<ReachableNote>,
    /// Notes behind 4 MiB of texts: their `text` is empty here.
    without_text: Vec<Uuid>,
    /// What to send as `after` for the next page; `null` if this is the last. After five seconds, a page comes with what is
    /// found: it may be empty.
    next: Option<Uuid>,
}

/// List notes by a filter
#[utoipa::path(
    post,
    path = "/v2/notes:list",
    tag = "notes",
    operation_id = "list_notes",
    request_body = ListRequest,
    responses(
        (status = 200, body = ListResponse),
        (status = 401, description = "No key, or one that was revoked", body = ErrorBody),
        (status = 403, description = "The key is bound to other labels", body = ErrorBody),
        (status = 422, description = "A field is unknown or has a wrong value", body = ErrorBody),
        (status = 503, description = "Postgres is unavailable", body = ErrorBody),
    )
)]
pub async fn list(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    Body(asked): Body<ListRequest>,
) -> Result<Json<ListResponse>, ApiError> {
    check_limit(asked.limit)?;
    let filter = asked.filter.checked(&shared, &caller).await?;
    let filter = with_status(filter, asked.status)?;
    let Api { store, version, .. } = &shared.api;
    let turn = shared.places.statement(&caller).await?;
    let reach = caller.reach();
    let after = asked.after.unwrap_or_default();
    let wanted = filter.of_note();
    let page = store.listed_notes(&wanted, &reach.tenant_id, after, asked.limit, LIST_TIME);
    let Listed { notes: ids, next } = page.await?;
    drop(turn);
    shared
        .room_for_notes(
            &caller,
            &ids,
            MAX_PAGE_BYTES as u64 + shared.api.max_note_bytes,
        )
        .await?;
    let found = store.reachable_notes(&ids, reach, version, MAX_PAGE_BYTES);
    let mut found: HashMap<Uuid, ReachableNote> = found
        .await?
        .into_iter()
        .map(|note| (note.note_id, note))
        .collect();
    let items: Vec<ReachableNote> = ids.iter().filter_map(|id| found.remove(id)).collect();
    let without_text = items.iter().filter(|note| note.left_out);
    Ok(Json(ListResponse {
        without_text: without_text.map(|note| note.note_id).collect(),
        items,
        next,
    }))
}

/// Which notes to delete.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"filter": {"type": "ticket"}, "dry_run": true}))]
pub struct DeleteRequest {
    /// Notes like this, live or not, that follow no row of a table. It names a label, a type, key or source, or a field
    /// of metadata.
    filter: NoteFilter,
    /// Only notes with this status.
    status: Option<String>,
    /// Delete every note that the key reaches, if nothing narrower is named.
    #[serde(default)]
    #[schema(default = false)]
    all: bool,
    /// Count the notes, and delete none.
    #[serde(default)]
    #[schema(default = false)]
    dry_run: bool,
    /// The `next` of the request before.
    after: Option<Uuid>,
}

/// What was deleted.
#[derive(Debug, Serialize, ToSchema)]
pub struct DeleteResponse {
    /// Notes that were deleted; with `dry_run`, that would be.
    notes: u64,
    /// What to send as `after` to go on: a request ends after 20 seconds. `null` if no note is left.
    next: Option<Uuid>,
}

/// Delete notes by a filter
#[utoipa::path(
    post,
    path = "/v2/notes:delete",
    tag = "notes",
    operation_id = "delete_notes",
    request_body = DeleteRequest,
    responses(
        (status = 200, body = DeleteResponse),
        (status = 401, description = "No key, or one that was revoked", body = ErrorBody),
        (status = 403, description = "The key may only read, or is bound to other labels", body = ErrorBody),
        (status = 422, description = "A field is unknown or has a wrong value, or the filter names none", body = ErrorBody),
        (status = 503, description = "Postgres is unavailable", body = ErrorBody),
    )
)]
pub async fn delete(
    State(shared): State<Arc<Shared>>,
    Writer(caller): Writer,
    Body(asked): Body<DeleteRequest>,
) -> Result<Json<DeleteResponse>, ApiError> {
    if asked.filter.is_wide() && !asked.all {
        let message = "the filter names no label, type, key, source or metadata, so it may be of every note that the key \
                       reaches: name one, or send \"all\": true";
        return Err(ApiError::invalid("filter", message));
    }
    let filter = asked.filter.checked(&shared, &caller).await?;
    let wanted = with_status(filter, asked.status)?.of_note();
    let _turn = shared.places.statement(&caller).await?;
    let tenant = &caller.reach().tenant_id;
    let after = asked.after.unwrap_or_default();
    let store = &shared.api.store;
    let deleted = store.delete_listed(&wanted, tenant, after, DELETE_TIME, asked.dry_run);
    let Listed { notes, next } = deleted.await.map_err(ApiError::of_write)?;
    Ok(Json(DeleteResponse { notes, next }))
}

fn with_status(mut filter: Filter, status: Option<String>) -> Result<Filter, ApiError> {
    check_labels([("status", status.as_deref())])?;
    if let Some(status) = status {
        filter.keywords.insert("status".into(), status);
    }
    Ok(filter)
}
