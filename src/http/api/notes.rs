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
use serde_json::Value;
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

use super::auth::{Caller, Writer};
use super::body::at_most;
use super::error::{ApiError, ErrorBody};
use super::wait::{Wait, Written, asked, written};
use super::{Api, Body, Shared};
use crate::chunk;
use crate::note::{check_zero_to_one, holds_nul, present};
use crate::store::{AddedNote, NoteChange, ReachableChunk, ReachableNote};

/// Most notes in one request.
const MAX_NOTES: usize = 1000;

/// Most bytes of `source_ref`.
const MAX_SOURCE_REF: usize = 64 << 10;

/// Most bytes of a label or a key: the payload of every point has them.
const MAX_LABEL: usize = 1000;

/// Most bytes of a key and the labels around it, together: Postgres has an index on them.
const MAX_NAME: usize = 2500;

/// A note to add.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewNote {
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
}

fn shared() -> String {
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

/// What to change. A field that is left out stays as it is; `null` clears `key`, `title` and `expires_at`.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"text": "The library opens at ten."}))]
pub struct ChangedNote {
    text: Option<String>,
    scope: Option<String>,
    #[serde(rename = "type")]
    kind: Option<String>,
    /// 0 to 1.
    importance: Option<f32>,
    /// 0 to 1.
    confidence: Option<f32>,
    /// `active` makes a note searchable; any other value takes it out of the index.
    status: Option<String>,
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<String>)]
    key: Option<Option<String>>,
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<String>)]
    title: Option<Option<String>>,
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<DateTime<Utc>>)]
    expires_at: Option<Option<DateTime<Utc>>>,
}

/// A note.
#[derive(Debug, Serialize, ToSchema)]
pub struct ShownNote {
    note_id: Uuid,
    tenant_id: String,
    project_id: String,
    agent_id: String,
    scope: String,
    #[serde(rename = "type")]
    kind: String,
    key: Option<String>,
    title: Option<String>,
    text: String,
    importance: f32,
    confidence: f32,
    status: String,
    updated_at: DateTime<Utc>,
    expires_at: Option<DateTime<Utc>>,
    /// Whether the index has the note as it is here.
    indexed: bool,
    /// What rejects the note, if it is dead-lettered: `text`, `provider`, `postgres`, `index` or `process`.
    /// `elf dead show` has the reason.
    dead_letter: Option<String>,
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
    let Added { note_ids, is_new } = add_all(&shared, &caller, notes).await?;
    let done = match is_new {
        true => StatusCode::CREATED,
        false => StatusCode::OK,
    };
    Ok(written(&shared, &caller, note_ids, is_waiting, done).await)
}

/// Notes that were added.
pub struct Added {
    /// In the order of the request.
    pub note_ids: Vec<Uuid>,
    /// Whether one of them was not there before.
    pub is_new: bool,
}

/// Adds notes, all or none.
pub async fn add_all(
    shared: &Arc<Shared>,
    caller: &Caller,
    notes: Vec<NewNote>,
) -> Result<Added, ApiError> {
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
    check_keys(&notes)?;
    let _turn = shared.places.statement(caller).await?;
    let written = shared.api.store.add_notes(&notes).await;
    let note_ids = written.map_err(ApiError::of_write)?;
    let is_new = notes.iter().any(|note| note_ids.contains(&note.note_id));
    Ok(Added { note_ids, is_new })
}

/// Refuses a key that two notes of one request have: one of them would be lost.
fn check_keys(notes: &[AddedNote]) -> Result<(), ApiError> {
    let mut seen = HashMap::new();
    for (place, note) in notes.iter().enumerate() {
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
        (status = 200, body = ShownNote),
        (status = 401, description = "No key, or one that was revoked", body = ErrorBody),
        (status = 404, description = "The key reaches no note of this id", body = ErrorBody),
    )
)]
pub async fn show(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    NoteId(id): NoteId,
) -> Result<Json<ShownNote>, ApiError> {
    let Api { store, version, .. } = &shared.api;
    shared.room_for_notes(&caller, &[id], u64::MAX).await?;
    let note = store.reachable_note(id, caller.reach(), version).await?;
    let note = note.ok_or_else(no_note)?;
    Ok(Json(note.into()))
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
        indexed: !note.waits,
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
    request_body = ChangedNote,
    responses(
        (status = 200, body = Written),
        (status = 202, description = "Changed, and not indexed within 30 seconds", body = Written),
        (status = 401, description = "No key, or one that was revoked", body = ErrorBody),
        (status = 403, description = "The key may only read", body = ErrorBody),
        (status = 404, description = "The key reaches no note of this id", body = ErrorBody),
        (status = 409, description = "Another note has the key", body = ErrorBody),
        (status = 422, description = "A field is unknown or has a wrong value", body = ErrorBody),
        (status = 503, description = "Not written, or with the code `outcome_unknown`: it may have been written", body = ErrorBody),
    )
)]
pub async fn change(
    State(shared): State<Arc<Shared>>,
    Writer(caller): Writer,
    NoteId(id): NoteId,
    wait: Result<Query<Wait>, QueryRejection>,
    Body(change): Body<ChangedNote>,
) -> Result<Response, ApiError> {
    let is_waiting = asked(wait)?;
    if let Some(text) = &change.text {
        check_text(&shared, text)?;
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
    check_key(change.key.as_ref().and_then(Option::as_deref))?;
    let change = NoteChange {
        text: change.text,
        scope: change.scope,
        kind: change.kind,
        importance: change.importance,
        confidence: change.confidence,
        status: change.status,
        key: change.key,
        expires_at: change.expires_at,
        title: change.title,
    };
    let turn = shared.places.statement(&caller).await?;
    let store = &shared.api.store;
    let changed = store.change_note(id, caller.reach(), &change).await;
    if !changed.map_err(ApiError::of_write)? {
        return Err(no_note());
    }
    drop((turn, change));
    Ok(written(&shared, &caller, vec![id], is_waiting, StatusCode::OK).await)
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
    let turn = shared.places.statement(&caller).await?;
    let removed = shared.api.store.remove_note(id, caller.reach()).await;
    if !removed.map_err(ApiError::of_write)? {
        return Err(no_note());
    }
    drop(turn);
    Ok(written(&shared, &caller, vec![id], is_waiting, StatusCode::OK).await)
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
    check_key(note.key.as_deref())?;
    check_name(
        [&tenant_id, &project_id, &agent_id, &note.scope],
        note.key.as_deref(),
    )?;
    let source_ref = source_ref(note.source_ref, &note.text)?;
    Ok(AddedNote {
        note_id: Uuid::new_v4(),
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
        source_ref,
        title: note.title,
    })
}

/// Parsed only after its size was checked, and not kept so: a parsed value may take 60 times as much
/// memory.
fn source_ref(given: Option<Box<RawValue>>, text: &str) -> Result<Box<RawValue>, ApiError> {
    let Some(given) = given else {
        let empty = RawValue::from_string("{}".into());
        return Ok(empty.expect("this is JSON"));
    };
    let parsed = match given.get().len() {
        ..=MAX_SOURCE_REF => serde_json::from_str(given.get())
            .ok()
            .filter(Value::is_object),
        _ => None,
    };
    let wrong = || {
        let message = format!("source_ref must be an object of at most {MAX_SOURCE_REF} bytes");
        ApiError::invalid("source_ref", message)
    };
    let parsed = parsed.ok_or_else(wrong)?;
    if holds_nul(&parsed) {
        return Err(nul_in("source_ref"));
    }
    if let Some(cuts) = parsed.get("cuts") {
        let wrong = |reason| ApiError::invalid("source_ref", reason);
        chunk::cuts(&cuts.to_string(), text).map_err(wrong)?;
    }
    Ok(given)
}

/// Refuses labels that no note of the API can have.
pub fn check_labels<'a>(
    labels: impl IntoIterator<Item = (&'a str, Option<&'a str>)>,
) -> Result<(), ApiError> {
    for (label, value) in labels {
        let bytes = value.map_or(0, str::len);
        if bytes > MAX_LABEL {
            let message = format!("{label} has {bytes} bytes; at most {MAX_LABEL} are possible");
            return Err(ApiError::invalid(label, message));
        }
        check_nul(label, value.unwrap_or_default())?;
    }
    Ok(())
}

/// An empty key would make one note of all that a client means to have none.
fn check_key(key: Option<&str>) -> Result<(), ApiError> {
    match key {
        Some("") => {
            let message = "key is empty: leave it out, or send null, for a note without one";
            Err(ApiError::invalid("key", message))
        }
        _ => Ok(()),
    }
}

fn check_name(labels: [&str; 4], key: Option<&str>) -> Result<(), ApiError> {
    let Some(key) = key else { return Ok(()) };
    let bytes = key.len() + labels.map(str::len).iter().sum::<usize>();
    match bytes {
        ..=MAX_NAME => Ok(()),
        _ => {
            let message = format!(
                "key, scope, tenant, project_id and agent_id have {bytes} bytes together; at most {MAX_NAME} \
                 are possible for a note with a key"
            );
            Err(ApiError::invalid("key", message))
        }
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

impl From<ReachableNote> for ShownNote {
    fn from(note: ReachableNote) -> Self {
        Self {
            note_id: note.note_id,
            tenant_id: note.tenant_id,
            project_id: note.project_id,
            agent_id: note.agent_id,
            scope: note.scope,
            kind: note.kind,
            key: note.key,
            title: note.title,
            text: note.text,
            importance: note.importance,
            confidence: note.confidence,
            status: note.status,
            updated_at: note.updated_at,
            expires_at: note.expires_at,
            indexed: !note.waits,
            dead_letter: note.dead_by,
        }
    }
}
