//! `/v2/notes`: they are rows of `memory_notes`. The outbox does the rest.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{FromRequestParts, Path, Query, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::Response;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use utoipa::ToSchema;
use uuid::Uuid;

use super::auth::{Caller, Writer};
use super::body::at_most;
use super::error::{ApiError, ErrorBody};
use super::searches::object;
use super::wait::{Wait, Written, asked, written};
use super::{Api, Body, Shared};
use crate::chunk;
use crate::metadata;
use crate::note::{check_key, check_label, check_zero_to_one, holds_nul};
use crate::store::{AddedNote, NoteChange, PutNotes, ReachableChunk, ReachableNote};

/// Most notes in one request.
const MAX_NOTES: usize = 1000;

const MAX_SOURCE_REF: usize = 64 << 10;

/// A note to add.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewNote {
    /// An id of the client's, random (version 4) or of a time (6, 7). A note that has it is replaced.
    note_id: Option<Uuid>,
    /// The text, up to `worker.max_note_bytes`.
    text: String,
    /// Without it, the project that the key is bound to, or `default`.
    project_id: Option<String>,
    /// Who wrote the note. Without it, the agent that the key is bound to, or `default`.
    agent_id: Option<String>,
    /// Who may see the note, in the application's words.
    #[serde(default = "shared")]
    #[schema(default = "shared")]
    scope: String,
    /// What kind of note it is, in the application's words.
    #[serde(rename = "type", default = "note")]
    #[schema(default = "note")]
    kind: String,
    /// The application's own name for the note, unique in its tenant, project, agent and scope. A note that has it is
    /// replaced.
    key: Option<String>,
    /// What the note is called.
    title: Option<String>,
    /// 0 to 1.
    #[serde(default = "half")]
    #[schema(default = 0.5, minimum = 0, maximum = 1)]
    importance: f32,
    /// 0 to 1.
    #[serde(default = "one")]
    #[schema(default = 1.0, minimum = 0, maximum = 1)]
    confidence: f32,
    /// When the note stops being live.
    expires_at: Option<DateTime<Utc>>,
    /// Where the note comes from, of at most 64 KiB. `cuts` are ascending byte offsets in the text where chunks end.
    #[schema(value_type = Option<Object>)]
    source_ref: Option<Box<RawValue>>,
    /// The application's own fields, of at most 16 KiB. A search can filter by those that the server's configuration
    /// declares.
    #[serde(default, deserialize_with = "object")]
    #[schema(value_type = Option<Object>)]
    metadata: Map<String, Value>,
}

pub fn shared() -> String {
    "shared".into()
}

fn note() -> String {
    "note".into()
}

fn half() -> f32 {
    0.5
}

fn one() -> f32 {
    1.0
}

/// 1 to 1,000 notes; all are added or none.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"notes": [{"text": "The library opens at nine.", "key": "opening-hours"}]}))]
pub struct NewNotes {
    #[serde(deserialize_with = "at_most::<MAX_NOTES, _, _>")]
    notes: Vec<NewNote>,
}

/// The chunks of a note.
#[derive(Debug, Serialize, ToSchema)]
pub struct NoteChunks {
    note_id: Uuid,
    /// Whether these are the chunks of the note's present text.
    indexed: bool,
    /// In their order.
    chunks: Vec<ReachableChunk>,
}

/// Add notes, or replace those that have their keys
#[utoipa::path(
    post,
    path = "/v2/notes",
    tag = "notes",
    operation_id = "add_notes",
    params(Wait),
    request_body = NewNotes,
    responses(
        (status = 200, description = "Every note was there before, and is now as sent", body = Written),
        (status = 201, description = "A note is new", body = Written),
        (status = 202, description = "Written, and not indexed within 30 seconds", body = Written),
        (status = 400, description = "The body is not JSON", body = ErrorBody),
        (status = 401, description = "No key, or one that was revoked", body = ErrorBody),
        (status = 403, description = "The key may only read, or is bound to other labels", body = ErrorBody),
        (status = 409, description = "The note follows a row", body = ErrorBody),
        (status = 413, description = "The body is too large", body = ErrorBody),
        (status = 422, description = "A field is unknown or has a wrong value", body = ErrorBody),
        (status = 503, description = "Not written, or with the code `outcome_unknown`: it may have been written", body = ErrorBody),
    )
)]
pub async fn add(
    State(shared): State<Arc<Shared>>,
    Writer(caller): Writer,
    wait: Result<Query<Wait>, QueryRejection>,
    Body(NewNotes { notes }): Body<NewNotes>,
) -> Result<Response, ApiError> {
    let is_waiting = asked(wait)?;
    let PutNotes { note_ids, is_new } = put_all(&shared, &caller, notes).await?;
    let done = match is_new {
        true => StatusCode::CREATED,
        false => StatusCode::OK,
    };
    Ok(written(&shared, &caller, note_ids, is_waiting, done).await)
}

/// Add notes, or replace those that have their keys or ids
///
/// As `POST`, and each note has a `key` or a `note_id`: so the request may be sent again.
#[utoipa::path(
    put,
    path = "/v2/notes",
    tag = "notes",
    operation_id = "put_notes",
    params(Wait),
    request_body = NewNotes,
    responses(
        (status = 200, description = "Every note was there before, and is now as sent", body = Written),
        (status = 201, description = "A note is new", body = Written),
        (status = 202, description = "Written, and not indexed within 30 seconds", body = Written),
        (status = 400, description = "The body is not JSON", body = ErrorBody),
        (status = 401, description = "No key, or one that was revoked", body = ErrorBody),
        (status = 403, description = "The key may only read, or is bound to other labels", body = ErrorBody),
        (status = 404, description = "The key does not reach the note of a `note_id`", body = ErrorBody),
        (status = 409, description = "Another note has the key, or the note follows a row", body = ErrorBody),
        (status = 413, description = "The body is too large", body = ErrorBody),
        (status = 422, description = "A field is unknown or has a wrong value", body = ErrorBody),
        (status = 503, description = "Not written, or with the code `outcome_unknown`: it may have been written", body = ErrorBody),
    )
)]
pub async fn put(
    state: State<Arc<Shared>>,
    writer: Writer,
    wait: Result<Query<Wait>, QueryRejection>,
    Body(sent): Body<NewNotes>,
) -> Result<Response, ApiError> {
    let is_named = |note: &NewNote| note.key.is_some() || note.note_id.is_some();
    if let Some(place) = sent.notes.iter().position(|note| !is_named(note)) {
        let message = "the note has neither key nor note_id: give it one, or add it with POST";
        return Err(ApiError::invalid("key", message).of_note(place));
    }
    add(state, writer, wait, Body(sent)).await
}

/// Writes notes, all or none.
pub async fn put_all(
    shared: &Arc<Shared>,
    caller: &Caller,
    notes: Vec<NewNote>,
) -> Result<PutNotes, ApiError> {
    if !(1..=MAX_NOTES).contains(&notes.len()) {
        let not = if notes.is_empty() { "0" } else { "more" };
        let message = format!("send 1 to {MAX_NOTES} notes, not {not}");
        return Err(ApiError::invalid("notes", message));
    }
    let notes = notes
        .into_iter()
        .enumerate()
        .map(|(place, note)| checked(shared, caller, note).map_err(|error| error.of_note(place)))
        .collect::<Result<Vec<AddedNote>, ApiError>>()?;
    check_names(&notes)?;
    let _turn = shared.places.statement(caller).await?;
    let written = shared.api.store.put_notes(&notes, caller.reach()).await;
    written.map_err(ApiError::of_write)?.ok_or_else(no_note)
}

/// Refuses a key or an id that two notes of one request have: one of them would be lost.
fn check_names(notes: &[AddedNote]) -> Result<(), ApiError> {
    let mut seen = HashMap::new();
    let mut ids = HashMap::new();
    for (place, note) in notes.iter().enumerate() {
        if let Some(before) = ids.insert(note.note_id, place) {
            let message = format!("notes[{before}] has the same note_id");
            return Err(ApiError::invalid("note_id", message).of_note(place));
        }
        let Some(key) = &note.key else { continue };
        let labels = (&note.project_id, &note.agent_id, &note.scope, key);
        if let Some(before) = seen.insert(labels, place) {
            let message = format!("notes[{before}] has the same key: {key:?}");
            return Err(ApiError::invalid("key", message).of_note(place));
        }
    }
    Ok(())
}

/// Show a note
#[utoipa::path(
    get,
    path = "/v2/notes/{id}",
    tag = "notes",
    operation_id = "get_note",
    params(("id" = Uuid, Path,)),
    responses(
        (status = 200, body = ReachableNote),
        (status = 401, description = "No key, or one that was revoked", body = ErrorBody),
        (status = 404, description = "The key reaches no note of this id", body = ErrorBody),
    )
)]
pub async fn show(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    NoteId(id): NoteId,
) -> Result<Json<ReachableNote>, ApiError> {
    let Api { store, version, .. } = &shared.api;
    shared.room_for_notes(&caller, &[id], u64::MAX).await?;
    let note = store.reachable_note(id, caller.reach(), version).await?;
    Ok(Json(note.ok_or_else(no_note)?))
}

/// Show how a note was chunked
#[utoipa::path(
    get,
    path = "/v2/notes/{id}/chunks",
    tag = "notes",
    operation_id = "get_chunks",
    params(("id" = Uuid, Path,)),
    responses(
        (status = 200, body = NoteChunks),
        (status = 401, description = "No key, or one that was revoked", body = ErrorBody),
        (status = 404, description = "The key reaches no note of this id", body = ErrorBody),
    )
)]
pub async fn chunks(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    NoteId(id): NoteId,
) -> Result<Json<NoteChunks>, ApiError> {
    let Api { store, version, .. } = &shared.api;
    shared.room_for_notes(&caller, &[id], u64::MAX).await?;
    let note = store.reachable_note(id, caller.reach(), version).await?;
    let note = note.ok_or_else(no_note)?;
    let chunks = store.reachable_chunks(id, caller.reach(), version).await?;
    let chunks = NoteChunks {
        note_id: id,
        indexed: note.indexed,
        chunks,
    };
    Ok(Json(chunks))
}

/// Change a note
#[utoipa::path(
    patch,
    path = "/v2/notes/{id}",
    tag = "notes",
    operation_id = "change_note",
    params(("id" = Uuid, Path,), Wait),
    request_body = NoteChange,
    responses(
        (status = 200, body = Written),
        (status = 202, description = "Changed, and not indexed within 30 seconds", body = Written),
        (status = 401, description = "No key, or one that was revoked", body = ErrorBody),
        (status = 403, description = "The key may only read", body = ErrorBody),
        (status = 404, description = "The key reaches no note of this id", body = ErrorBody),
        (status = 409, description = "Another note has the key, or the note follows a row", body = ErrorBody),
        (status = 422, description = "A field is unknown or has a wrong value", body = ErrorBody),
        (status = 503, description = "Not written, or with the code `outcome_unknown`: it may have been written", body = ErrorBody),
    )
)]
pub async fn change(
    State(shared): State<Arc<Shared>>,
    Writer(caller): Writer,
    NoteId(id): NoteId,
    wait: Result<Query<Wait>, QueryRejection>,
    Body(change): Body<NoteChange>,
) -> Result<Response, ApiError> {
    let is_waiting = asked(wait)?;
    change_one(&shared, &caller, id, change).await?;
    Ok(written(&shared, &caller, vec![id], is_waiting, StatusCode::OK).await)
}

/// Changes a note.
pub async fn change_one(
    shared: &Shared,
    caller: &Caller,
    id: Uuid,
    change: NoteChange,
) -> Result<(), ApiError> {
    if let Some(text) = &change.text {
        check_text(shared, text)?;
    }
    check_share("importance", change.importance)?;
    check_share("confidence", change.confidence)?;
    check_labels([
        ("scope", change.scope.as_deref()),
        ("type", change.kind.as_deref()),
        ("status", change.status.as_deref()),
        ("key", change.key.as_ref().and_then(Option::as_deref)),
        ("title", change.title.as_ref().and_then(Option::as_deref)),
    ])?;
    check_not_empty(change.key.as_ref().and_then(Option::as_deref))?;
    if let Some(given) = &change.source_ref {
        check_source_ref(given, change.text.as_deref())?;
    }
    if let Some(metadata) = &change.metadata {
        check_metadata(metadata)?;
    }
    let _turn = shared.places.statement(caller).await?;
    let store = &shared.api.store;
    let changed = store.change_note(id, caller.reach(), &change).await;
    match changed.map_err(ApiError::of_write)? {
        true => Ok(()),
        false => Err(no_note()),
    }
}

/// Delete a note
#[utoipa::path(
    delete,
    path = "/v2/notes/{id}",
    tag = "notes",
    operation_id = "delete_note",
    params(("id" = Uuid, Path,), Wait),
    responses(
        (status = 200, body = Written),
        (status = 202, description = "Deleted, and not removed from the index within 30 seconds; no search shows it", body = Written),
        (status = 401, description = "No key, or one that was revoked", body = ErrorBody),
        (status = 403, description = "The key may only read", body = ErrorBody),
        (status = 404, description = "The key reaches no note of this id", body = ErrorBody),
        (status = 409, description = "The note follows a row", body = ErrorBody),
        (status = 503, description = "Not deleted, or with the code `outcome_unknown`: it may have been deleted", body = ErrorBody),
    )
)]
pub async fn remove(
    State(shared): State<Arc<Shared>>,
    Writer(caller): Writer,
    NoteId(id): NoteId,
    wait: Result<Query<Wait>, QueryRejection>,
) -> Result<Response, ApiError> {
    let is_waiting = asked(wait)?;
    remove_one(&shared, &caller, id).await?;
    Ok(written(&shared, &caller, vec![id], is_waiting, StatusCode::OK).await)
}

/// Deletes a note.
pub async fn remove_one(shared: &Shared, caller: &Caller, id: Uuid) -> Result<(), ApiError> {
    let _turn = shared.places.statement(caller).await?;
    let removed = shared.api.store.remove_note(id, caller.reach()).await;
    match removed.map_err(ApiError::of_write)? {
        true => Ok(()),
        false => Err(no_note()),
    }
}

/// The same words for a note of another tenant and for one that does not exist.
pub fn no_note() -> ApiError {
    ApiError::not_found("this key reaches no note of this id")
}

/// The id in a path. Any other text than a UUID is the id of no note.
pub struct NoteId(pub Uuid);

impl<S: Send + Sync> FromRequestParts<S> for NoteId {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let id = Path::<Uuid>::from_request_parts(parts, state).await;
        id.map(|Path(id)| Self(id)).map_err(|_| no_note())
    }
}

fn checked(shared: &Shared, caller: &Caller, note: NewNote) -> Result<AddedNote, ApiError> {
    check_text(shared, &note.text)?;
    check_share("importance", Some(note.importance))?;
    check_share("confidence", Some(note.confidence))?;
    check_labels([
        ("project_id", note.project_id.as_deref()),
        ("agent_id", note.agent_id.as_deref()),
        ("scope", Some(note.scope.as_str())),
        ("type", Some(note.kind.as_str())),
        ("key", note.key.as_deref()),
        ("title", note.title.as_deref()),
    ])?;
    let or_default = |label: Option<String>| label.unwrap_or_else(|| "default".into());
    let tenant_id = caller.reach().tenant_id.clone();
    let project_id = or_default(caller.project(note.project_id)?);
    let agent_id = or_default(caller.agent(note.agent_id)?);
    check_not_empty(note.key.as_deref())?;
    if let Some(key) = &note.key {
        let checked = check_key(key, [&tenant_id, &project_id, &agent_id, &note.scope]);
        checked.map_err(|message| ApiError::invalid("key", message))?;
    }
    if let Some(given) = &note.source_ref {
        check_source_ref(given, Some(&note.text))?;
    }
    check_metadata(&note.metadata)?;
    // ELF derives such ids from keys and rows: who could take one would hold up another tenant's import or row.
    let is_derived = |id: Uuid| matches!(id.get_version_num(), 0 | 3 | 5 | 8);
    if note.note_id.is_some_and(is_derived) {
        let message = "note_id must be a random UUID (version 4) or one of a time (6, 7): name the note with a key instead";
        return Err(ApiError::invalid("note_id", message));
    }
    Ok(AddedNote {
        note_id: note.note_id.unwrap_or_else(Uuid::new_v4),
        has_given_id: note.note_id.is_some(),
        tenant_id,
        project_id,
        agent_id,
        scope: note.scope,
        kind: note.kind,
        key: note.key,
        text: note.text,
        importance: note.importance,
        confidence: note.confidence,
        expires_at: note.expires_at,
        source_ref: note.source_ref.unwrap_or_else(no_source),
        title: note.title,
        metadata: note.metadata,
    })
}

fn no_source() -> Box<RawValue> {
    RawValue::from_string("{}".into()).expect("this is JSON")
}

fn check_metadata(metadata: &Map<String, Value>) -> Result<(), ApiError> {
    let checked = metadata::check(metadata);
    checked.map_err(|message| ApiError::invalid("metadata", message))
}

/// Parsed only after its size was checked, and not kept so: a parsed value may take 60 times as much
/// memory.
fn check_source_ref(given: &RawValue, text: Option<&str>) -> Result<(), ApiError> {
    let invalid = |message: String| ApiError::invalid("source_ref", message);
    let parsed: Option<Value> = match given.get().len() {
        ..=MAX_SOURCE_REF => serde_json::from_str(given.get()).ok(),
        _ => None,
    };
    let parsed = parsed.filter(Value::is_object).ok_or_else(|| {
        invalid(format!(
            "source_ref must be an object of at most {MAX_SOURCE_REF} bytes"
        ))
    })?;
    if holds_nul(&parsed) {
        return Err(nul_in("source_ref"));
    }
    let Some(cuts) = parsed.get("cuts") else {
        return Ok(());
    };
    let text = text.ok_or_else(|| {
        invalid("source_ref.cuts are offsets in a text: send the text with them".into())
    })?;
    let checked = chunk::cuts(&cuts.to_string(), text);
    checked.map(drop).map_err(invalid)
}

/// Refuses labels that no note of the API can have.
pub fn check_labels<'a>(
    labels: impl IntoIterator<Item = (&'a str, Option<&'a str>)>,
) -> Result<(), ApiError> {
    for (label, value) in labels {
        let checked = check_label(label, value.unwrap_or_default());
        checked.map_err(|message| ApiError::invalid(label, message))?;
    }
    Ok(())
}

/// An empty key would make one note of all that a client means to have none.
fn check_not_empty(key: Option<&str>) -> Result<(), ApiError> {
    match key {
        Some("") => {
            let message = "key is empty: leave it out, or send null, for a note without one";
            Err(ApiError::invalid("key", message))
        }
        _ => Ok(()),
    }
}

/// Postgres stores no NUL character.
fn check_nul(field: &str, value: &str) -> Result<(), ApiError> {
    match value.contains('\0') {
        true => Err(nul_in(field)),
        false => Ok(()),
    }
}

fn nul_in(field: &str) -> ApiError {
    ApiError::invalid(field, format!("{field} has a NUL character"))
}

fn check_text(shared: &Shared, text: &str) -> Result<(), ApiError> {
    let max = shared.api.max_note_bytes;
    if text.trim().is_empty() {
        return Err(ApiError::invalid("text", "the text is empty"));
    }
    if text.len() as u64 > max {
        let bytes = text.len();
        let message = format!("the text has {bytes} bytes; at most {max} are possible");
        return Err(ApiError::invalid("text", message));
    }
    check_nul("text", text)
}

pub fn check_share(field: &str, value: Option<f32>) -> Result<(), ApiError> {
    let checked = value.map_or(Ok(()), |value| check_zero_to_one(field, value));
    checked.map_err(|message| ApiError::invalid(field, message))
}
