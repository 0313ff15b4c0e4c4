//! `POST /v2/notes:find_duplicates`

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::auth::Caller;
use super::error::{ApiError, ErrorBody};
use super::notes::no_note;
use super::searches::{NoteFilter, check_limit, default_limit};
use super::{Body, Shared};
use crate::store::Duplicate;

/// Which note to compare.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"note_id": "00000000-0000-0000-0000-000000000000"}))]
pub struct DuplicatesRequest {
    /// The note that the others are compared with. It must be indexed.
    note_id: Uuid,
    /// The least cosine of the pooled vectors, -1 to 1.
    #[serde(default = "default_similarity")]
    #[schema(default = 0.9, minimum = -1, maximum = 1)]
    min_similarity: f32,
    /// Notes to return at most, 1 to 100.
    #[serde(default = "default_limit")]
    #[schema(default = 10, minimum = 1, maximum = 100)]
    limit: usize,
    /// Only notes like this.
    #[serde(default)]
    filter: NoteFilter,
}

fn default_similarity() -> f32 {
    0.9
}

/// The notes that are most like the note.
#[derive(Debug, Serialize, ToSchema)]
pub struct DuplicatesResponse {
    items: Vec<Duplicate>,
}

/// Find notes that say nearly the same as a note, without an embedding call
#[utoipa::path(
    post,
    path = "/v2/notes:find_duplicates",
    tag = "notes",
    operation_id = "find_duplicates",
    request_body = DuplicatesRequest,
    responses(
        (status = 200, body = DuplicatesResponse),
        (status = 401, description = "No key, or one that was revoked", body = ErrorBody),
        (status = 404, description = "The key reaches no note of this id", body = ErrorBody),
        (status = 409, description = "The note is not indexed", body = ErrorBody),
        (status = 422, description = "A field is unknown or has a wrong value", body = ErrorBody),
        (status = 503, description = "There are too many notes to compare within five seconds", body = ErrorBody),
    )
)]
pub async fn find(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    Body(asked): Body<DuplicatesRequest>,
) -> Result<Json<DuplicatesResponse>, ApiError> {
    check_limit(asked.limit)?;
    if !(-1.0..=1.0).contains(&asked.min_similarity) {
        let message = format!(
            "min_similarity must be -1 to 1, not {}",
            asked.min_similarity
        );
        return Err(ApiError::invalid("min_similarity", message));
    }
    let wanted = asked.filter.checked(&shared, &caller).await?.of_note();
    let store = &shared.api.store;
    let version = &shared.api.version;
    let known = store.reachable_note(asked.note_id, caller.reach(), version);
    if !known.await?.ok_or_else(no_note)?.indexed {
        return Err(ApiError::new(
            StatusCode::CONFLICT,
            "not_indexed",
            "the note is not indexed as it is now: ask again when it is",
        ));
    }
    let _turn = shared.places.statement(&caller).await?;
    let items = store
        .find_duplicates(
            asked.note_id,
            version,
            caller.reach(),
            asked.min_similarity,
            asked.limit,
            &wanted,
        )
        .await?;
    Ok(Json(DuplicatesResponse { items }))
}
