//! Searches that were recorded: their answers once more, the notes that a client then reads, and
//! how they came about.
//!
//! A key reads the searches of keys that reached no more than it does.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use axum::Json;
use axum::extract::{FromRequestParts, Path, State};
use axum::http::request::Parts;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use uuid::Uuid;

use super::auth::Caller;
use super::error::{ApiError, ErrorBody};
use super::{Api, Body, Shared};
use crate::index::Filter;
use crate::search::PastItem;
use crate::store::{Hit, ReachableNote, RecordedTrace, TraceItem, TracedChunk};

/// No further note is read once the texts of an answer have so many bytes together.
const MAX_BYTES_READ: i64 = 16 << 20;

/// Most notes that one request reads: as many as an answer may have.
const MAX_NOTES: usize = super::searches::MAX_LIMIT;

/// The answer of a search, once more.
#[derive(Debug, Serialize, ToSchema)]
pub struct PastSearch {
    search_id: Uuid,
    /// What was searched for.
    query: String,
    /// The rest of the request.
    request: Value,
    created_at: DateTime<Utc>,
    /// The notes of the answer that are live and that this key reaches, in its order, as they are now.
    items: Vec<PastItem>,
    /// What the search did without.
    degraded: Vec<String>,
}

/// Which notes to read.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"note_ids": ["00000000-0000-0000-0000-000000000000"]}))]
pub struct ReadNotes {
    /// 1 to 100 ids of notes of the answer.
    note_ids: Vec<Uuid>,
}

/// Notes of an answer, as they are now.
#[derive(Debug, Serialize, ToSchema)]
pub struct NotesRead {
    /// In the order of the request, each once.
    notes: Vec<ReachableNote>,
    /// Notes for which there was no room: the texts before them have 16 MiB together. Ask for these again.
    left_out: Vec<Uuid>,
    /// Ids of the request that are in no note of the answer, or that this key reaches no more.
    missing: Vec<Uuid>,
}

/// How a search came to its answer.
#[derive(Debug, Serialize, ToSchema)]
pub struct ShownTrace {
    trace_id: Uuid,
    /// What was searched for.
    query: String,
    /// The rest of the request.
    request: Value,
    embedding_version: String,
    created_at: DateTime<Utc>,
    /// What the search did without.
    degraded: Vec<String>,
    /// Candidates of the index.
    candidates: i32,
    /// Candidates that Postgres did not confirm: the note is not live, has other labels or another text.
    dropped: i32,
    /// Milliseconds of each stage.
    #[schema(example = json!({"embed": 1.2, "retrieve": 3.1, "revalidate": 0.9, "stitch": 0.8, "rerank": 0.0}))]
    took_ms: Value,
    /// The chunks of the answer, then up to 100 others that Postgres confirmed.
    items: Vec<TraceItem>,
}

/// One chunk on its way through a search.
#[derive(Debug, Serialize, ToSchema)]
pub struct ShownTraceItem {
    trace_id: Uuid,
    #[serde(flatten)]
    item: TraceItem,
}

/// The answer of a search, once more
#[utoipa::path(
    get,
    path = "/v2/searches/{id}",
    tag = "searches",
    operation_id = "get_search",
    params(("id" = Uuid, Path, description = "`search_id` of an answer")),
    responses(
        (status = 200, body = PastSearch),
        (status = 401, description = "No key, or one that was revoked", body = ErrorBody),
        (status = 404, description = "The key may read no search of this id", body = ErrorBody),
    )
)]
pub async fn show(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    TraceId(id): TraceId,
) -> Result<Json<PastSearch>, ApiError> {
    let trace = recorded(&shared, &caller, id).await?;
    let chunks = answer(&shared, id).await?;
    let filter = Filter {
        keywords: caller.labels(),
        ..Filter::default()
    };
    let items = shared.api.searcher.again(&chunks, &filter).await?;
    let past = PastSearch {
        search_id: id,
        query: trace.query,
        request: trace.request,
        created_at: trace.created_at,
        items,
        degraded: trace.degraded,
    };
    Ok(Json(past))
}

/// Read notes of an answer
///
/// ELF records that they were read (`memory_hits`).
#[utoipa::path(
    post,
    path = "/v2/searches/{id}/notes",
    tag = "searches",
    operation_id = "read_notes",
    params(("id" = Uuid, Path, description = "`search_id` of an answer")),
    request_body = ReadNotes,
    responses(
        (status = 200, body = NotesRead),
        (status = 401, description = "No key, or one that was revoked", body = ErrorBody),
        (status = 404, description = "The key may read no search of this id", body = ErrorBody),
        (status = 422, description = "A field is unknown or has a wrong value", body = ErrorBody),
    )
)]
pub async fn read_notes(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    TraceId(id): TraceId,
    Body(ReadNotes { note_ids }): Body<ReadNotes>,
) -> Result<Json<NotesRead>, ApiError> {
    if !(1..=MAX_NOTES).contains(&note_ids.len()) {
        let message = format!("send 1 to {MAX_NOTES} note_ids, not {}", note_ids.len());
        return Err(ApiError::invalid("note_ids", message));
    }
    recorded(&shared, &caller, id).await?;
    let found: HashMap<Uuid, TracedChunk> = answer(&shared, id)
        .await?
        .into_iter()
        .map(|chunk| (chunk.note_id, chunk))
        .collect();
    let asked: Vec<Uuid> = note_ids
        .iter()
        .copied()
        .filter(|note| found.contains_key(note))
        .collect();
    let Api { store, version, .. } = &shared.api;
    let most = MAX_BYTES_READ as u64 + shared.api.max_note_bytes;
    shared.room_for_notes(&caller, &asked, most).await?;
    let read = store
        .reachable_notes(&asked, caller.reach(), version, MAX_BYTES_READ)
        .await?;
    let mut read: HashMap<Uuid, ReachableNote> =
        read.into_iter().map(|note| (note.note_id, note)).collect();
    let (mut notes, mut hits) = (Vec::new(), Vec::new());
    let (mut left_out, mut missing) = (Vec::new(), Vec::new());
    let mut seen = HashSet::new();
    for note_id in note_ids.into_iter().filter(|note| seen.insert(*note)) {
        match (read.remove(&note_id), found.get(&note_id)) {
            (Some(note), Some(_)) if note.left_out => left_out.push(note_id),
            (Some(note), Some(chunk)) => {
                notes.push(note);
                hits.push(hit(id, chunk));
            }
            _ => missing.push(note_id),
        }
    }
    shared.traces.hits(&caller, hits);
    let read = NotesRead {
        notes,
        left_out,
        missing,
    };
    Ok(Json(read))
}

/// How a search came to its answer
#[utoipa::path(
    get,
    path = "/v2/admin/traces/{id}",
    tag = "traces",
    operation_id = "get_trace",
    params(("id" = Uuid, Path, description = "`search_id` of an answer")),
    responses(
        (status = 200, body = ShownTrace),
        (status = 401, description = "No key, or one that was revoked", body = ErrorBody),
        (status = 404, description = "The key may read no search of this id", body = ErrorBody),
    )
)]
pub async fn show_trace(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    TraceId(id): TraceId,
) -> Result<Json<ShownTrace>, ApiError> {
    let trace = recorded(&shared, &caller, id).await?;
    let items = shared.api.store.trace_items(id).await?;
    let shown = ShownTrace {
        trace_id: trace.trace_id,
        query: trace.query,
        request: trace.request,
        embedding_version: trace.embedding_version,
        created_at: trace.created_at,
        degraded: trace.degraded,
        candidates: trace.candidates,
        dropped: trace.dropped,
        took_ms: trace.took_ms,
        items,
    };
    Ok(Json(shown))
}

/// One chunk on its way through a search
#[utoipa::path(
    get,
    path = "/v2/admin/trace-items/{item_id}",
    tag = "traces",
    operation_id = "get_trace_item",
    params(("item_id" = Uuid, Path, description = "`item_id` in a trace")),
    responses(
        (status = 200, body = ShownTraceItem),
        (status = 401, description = "No key, or one that was revoked", body = ErrorBody),
        (status = 404, description = "The key may read no item of this id", body = ErrorBody),
    )
)]
pub async fn show_item(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    TraceId(item_id): TraceId,
) -> Result<Json<ShownTraceItem>, ApiError> {
    shared.traces.written().await;
    let store = &shared.api.store;
    let trace_id = store.trace_of_item(item_id, caller.reach()).await?;
    let trace_id = trace_id.ok_or_else(no_trace)?;
    let items = store.trace_items(trace_id).await?;
    let item = items.into_iter().find(|item| item.item_id == item_id);
    let item = item.ok_or_else(no_trace)?;
    Ok(Json(ShownTraceItem { trace_id, item }))
}

async fn recorded(shared: &Shared, caller: &Caller, id: Uuid) -> Result<RecordedTrace, ApiError> {
    shared.traces.written().await;
    let trace = shared.api.store.trace(id, caller.reach()).await?;
    trace.ok_or_else(no_trace)
}

/// The chunks of the answer of a search.
async fn answer(shared: &Shared, id: Uuid) -> Result<Vec<TracedChunk>, ApiError> {
    let items = shared.api.store.trace_items(id).await?;
    let chunks = items.into_iter().map(|item| item.chunk);
    Ok(chunks.filter(|chunk| chunk.rank.is_some()).collect())
}

fn hit(trace_id: Uuid, chunk: &TracedChunk) -> Hit {
    Hit {
        trace_id,
        note_id: chunk.note_id,
        chunk_id: chunk.chunk_id,
        rank: chunk.rank.unwrap_or_default(),
        score: chunk.fused,
    }
}

/// The same words for a search of another tenant and for one that does not exist.
fn no_trace() -> ApiError {
    ApiError::not_found(
        "this key may read no search of this id: it does not exist, it is older than \
         search.trace_days, or a key that reaches more made it",
    )
}

/// The id in a path. Any other text than a UUID is the id of no search.
pub struct TraceId(pub Uuid);

impl<S: Send + Sync> FromRequestParts<S> for TraceId {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let id = Path::<Uuid>::from_request_parts(parts, state).await;
        id.map(|Path(id)| Self(id)).map_err(|_| no_trace())
    }
}
