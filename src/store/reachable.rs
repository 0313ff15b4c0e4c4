//! Notes as the HTTP API reads and writes them: each statement is limited to what a key reaches.

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use sqlx::types::Json;
use utoipa::ToSchema;
use uuid::Uuid;

use super::migrations::is_locked_out;
use super::write::{SEVERAL_LIMIT, WRITE, WRITE_SEVERAL, affected};
use super::{LOCKED_PAUSE, Reach, Shown, Store, StoreError, Transaction};
use crate::note::present;

/// A note.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ShownNote)]
#[expect(
    missing_docs,
    reason = "the columns of the same names say what they are"
)]
pub struct ReachableNote {
    pub note_id: Uuid,
    pub tenant_id: String,
    pub project_id: String,
    pub agent_id: String,
    pub scope: String,
    #[serde(rename = "type")]
    pub kind: String,
    pub key: Option<String>,
    pub title: Option<String>,
    pub text: String,
    pub importance: f32,
    pub confidence: f32,
    pub status: String,
    pub updated_at: DateTime<Utc>,
    pub expires_at: Option<DateTime<Utc>>,
    /// The application's own fields.
    #[schema(value_type = Object)]
    pub metadata: Shown,
    /// Without `cuts`.
    #[schema(value_type = Object)]
    pub source_ref: Shown,
    pub source: Option<String>,
    pub source_id: Option<String>,
    /// Whether the index has the note as it is here.
    pub indexed: bool,
    /// What rejects the note, if it is dead-lettered: `text`, `provider`, `postgres`, `index` or `process`.
    /// `elf dead show` has the reason.
    pub dead_letter: Option<String>,
    /// Whether it came without its text.
    #[serde(skip)]
    pub left_out: bool,
}

/// A part of a note's text.
#[derive(Debug)]
pub struct NotePart {
    /// Its bytes. It may begin and end within a character.
    pub bytes: Vec<u8>,
    /// How many bytes the whole text has.
    pub text_bytes: i32,
    /// When the note was last written.
    pub updated_at: DateTime<Utc>,
}

/// A chunk of a note that a key reaches.
#[derive(Debug, Serialize, ToSchema)]
pub struct ReachableChunk {
    /// Also its point's id.
    pub chunk_id: Uuid,
    /// Its position in the note, from 0.
    pub chunk_index: i32,
    /// The byte offset in the note's text (UTF-8) where it begins.
    pub start_offset: i32,
    /// The byte offset where it ends. The next chunk may begin before it.
    pub end_offset: i32,
    /// Without its lead.
    pub text: String,
}

/// A note to insert.
#[derive(Debug)]
#[expect(
    missing_docs,
    reason = "the columns of the same names say what they are"
)]
pub struct AddedNote {
    pub note_id: Uuid,
    /// Whether the client gave the id.
    pub has_given_id: bool,
    pub tenant_id: String,
    pub project_id: String,
    pub agent_id: String,
    pub scope: String,
    pub kind: String,
    pub key: Option<String>,
    pub text: String,
    pub importance: f32,
    pub confidence: f32,
    pub expires_at: Option<DateTime<Utc>>,
    pub source_ref: Box<RawValue>,
    pub title: Option<String>,
    pub metadata: Map<String, Value>,
}

/// What to change. A field that is left out stays as it is; `null` clears `key`, `title` and `expires_at`.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ChangedNote, example = json!({"text": "The library opens at ten."}))]
#[expect(
    missing_docs,
    reason = "the columns of the same names say what they are"
)]
pub struct NoteChange {
    pub text: Option<String>,
    pub scope: Option<String>,
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// 0 to 1.
    pub importance: Option<f32>,
    /// 0 to 1.
    pub confidence: Option<f32>,
    /// `active` makes a note searchable; any other value takes it out of the index.
    pub status: Option<String>,
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<String>)]
    pub key: Option<Option<String>>,
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<String>)]
    pub title: Option<Option<String>>,
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<DateTime<Utc>>)]
    pub expires_at: Option<Option<DateTime<Utc>>>,
    /// Replaces what was there. `cuts` need `text` in the same request; a new `text` drops those of the old one.
    #[schema(value_type = Option<Object>)]
    pub source_ref: Option<Box<RawValue>>,
    /// Replaces what was there.
    pub metadata: Option<Map<String, Value>>,
}

/// Notes that were written.
#[derive(Debug)]
pub struct PutNotes {
    /// In the order in which they were sent.
    pub note_ids: Vec<Uuid>,
    /// Whether one of them was not there before.
    pub is_new: bool,
}

/// A note like the one that was asked for.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LikeNote)]
#[expect(
    missing_docs,
    reason = "the columns of the same names say what they are"
)]
pub struct Duplicate {
    pub note_id: Uuid,
    pub key: Option<String>,
    /// Cosine of the two pooled vectors.
    pub similarity: f32,
}

impl Store {
    /// A note; `None` if `reach` has no note of this id.
    pub async fn reachable_note(
        &self,
        note_id: Uuid,
        reach: &Reach,
        version: &str,
    ) -> Result<Option<ReachableNote>, StoreError> {
        let mut found = self
            .reachable_notes(&[note_id], reach, version, i64::MAX)
            .await?;
        Ok(found.pop())
    }

    /// Those of these notes that `reach` has, in no order. A note behind others that have
    /// `max_bytes` of text together is `left_out`: it comes without its text.
    pub async fn reachable_notes(
        &self,
        notes: &[Uuid],
        reach: &Reach,
        version: &str,
        max_bytes: i64,
    ) -> Result<Vec<ReachableNote>, StoreError> {
        let found = sqlx::query_file_as!(
            ReachableNote,
            "sql/queries/reachable_notes.sql",
            notes,
            reach.tenant_id,
            reach.project_id.as_deref(),
            reach.agent_id.as_deref(),
            version,
            max_bytes
        );
        self.asked("load", found.fetch_all(&self.pool)).await
    }

    /// How many bytes the texts of those of these notes have that `reach` has.
    pub async fn note_bytes(&self, notes: &[Uuid], reach: &Reach) -> Result<u64, StoreError> {
        let bytes = sqlx::query_file_scalar!(
            "sql/queries/note_bytes.sql",
            notes,
            reach.tenant_id,
            reach.project_id.as_deref(),
            reach.agent_id.as_deref()
        );
        let bytes = self.asked("load", bytes.fetch_one(&self.pool)).await?;
        Ok(bytes as u64)
    }

    /// At most `max_bytes` of the text of a note, from the byte `offset` on; `None` if `reach` has no note of this id.
    pub async fn note_part(
        &self,
        note_id: Uuid,
        reach: &Reach,
        offset: i32,
        max_bytes: i32,
    ) -> Result<Option<NotePart>, StoreError> {
        let part = sqlx::query_file_as!(
            NotePart,
            "sql/queries/note_part.sql",
            note_id,
            reach.tenant_id,
            reach.project_id.as_deref(),
            reach.agent_id.as_deref(),
            offset,
            max_bytes
        );
        self.asked("load", part.fetch_optional(&self.pool)).await
    }

    /// The chunks of a note, in their order; none if `reach` has no note of this id.
    pub async fn reachable_chunks(
        &self,
        note_id: Uuid,
        reach: &Reach,
        version: &str,
    ) -> Result<Vec<ReachableChunk>, StoreError> {
        let chunks = sqlx::query_file_as!(
            ReachableChunk,
            "sql/queries/reachable_chunks.sql",
            note_id,
            reach.tenant_id,
            reach.project_id.as_deref(),
            reach.agent_id.as_deref(),
            version
        );
        self.asked("load", chunks.fetch_all(&self.pool)).await
    }

    /// Writes notes; all or none. One with an id of the client's replaces the note that has it; of the others, one
    /// whose key another note has becomes that note. No two of `notes` may have the same id or key. `None` if an id
    /// is that of a note that `reach` does not have. Fails if a trigger changed an id or a key, or dropped a row.
    pub async fn put_notes(
        &self,
        notes: &[AddedNote],
        reach: &Reach,
    ) -> Result<Option<PutNotes>, StoreError> {
        let (given, named): (Vec<&AddedNote>, Vec<&AddedNote>) =
            notes.iter().partition(|note| note.has_given_id);
        let (given, named) = (Columns::of(given), Columns::of(named));
        let work = async {
            let began = Instant::now();
            let is_one = notes.len() == 1;
            let (tx, written) = loop {
                let begin = if is_one { WRITE } else { WRITE_SEVERAL };
                let mut tx = Transaction::begin(&self.pool, begin).await?;
                match put(&mut tx, &given, &named, reach).await {
                    Ok(written) => break (tx, written),
                    Err(error)
                        if !is_one && is_locked_out(&error) && began.elapsed() < SEVERAL_LIMIT =>
                    {
                        tx.rollback().await?;
                        tokio::time::sleep(LOCKED_PAUSE).await;
                    }
                    Err(error) => return Err(error.into()),
                }
            };
            let Some(written) = written else {
                return Ok((tx, None));
            };
            let note_ids = ids_of(notes, &written).ok_or_else(|| {
                let reason =
                    "a trigger of the application changed an id or a key, or dropped a row";
                StoreError::Rejected(reason.to_owned())
            })?;
            let is_new = written.iter().any(|row| row.is_new);
            Ok((tx, Some(PutNotes { note_ids, is_new })))
        };
        self.write("commit", work).await
    }

    /// Changes a note. `false` if `reach` has no note of this id.
    pub async fn change_note(
        &self,
        note_id: Uuid,
        reach: &Reach,
        change: &NoteChange,
    ) -> Result<bool, StoreError> {
        let change = sqlx::query_file!(
            "sql/queries/change_note.sql",
            note_id,
            reach.tenant_id,
            reach.project_id.as_deref(),
            reach.agent_id.as_deref(),
            change.text.as_deref(),
            change.scope.as_deref(),
            change.kind.as_deref(),
            change.importance,
            change.confidence,
            change.status.as_deref(),
            change.key.is_some(),
            change.key.as_ref().and_then(Option::as_deref),
            change.expires_at.is_some(),
            change.expires_at.flatten(),
            change.title.is_some(),
            change.title.as_ref().and_then(Option::as_deref),
            change.source_ref.as_deref().map(Json) as _,
            change.metadata.as_ref().map(Json) as _
        );
        let changed = affected(&self.pool, WRITE, change);
        Ok(self.write("commit", changed).await? > 0)
    }

    /// Deletes a note. `false` if `reach` has no note of this id.
    pub async fn remove_note(&self, note_id: Uuid, reach: &Reach) -> Result<bool, StoreError> {
        let remove = sqlx::query_file!(
            "sql/queries/remove_note.sql",
            note_id,
            reach.tenant_id,
            reach.project_id.as_deref(),
            reach.agent_id.as_deref()
        );
        let removed = affected(&self.pool, WRITE, remove);
        Ok(self.write("commit", removed).await? > 0)
    }

    /// How many of these notes a worker still has to bring into step, and how many are
    /// dead-lettered.
    pub async fn notes_waiting(
        &self,
        notes: &[Uuid],
        version: &str,
    ) -> Result<(i64, i64), StoreError> {
        let row = sqlx::query_file!("sql/queries/notes_waiting.sql", notes, version);
        let row = self.asked("lookup", row.fetch_one(&self.pool)).await?;
        Ok((row.waiting, row.dead))
    }

    /// The live notes that are most like a note, by their pooled vectors: at most `limit`, of a
    /// cosine of at least `min_similarity`, and as `wanted`.
    pub async fn find_duplicates(
        &self,
        note_id: Uuid,
        version: &str,
        reach: &Reach,
        min_similarity: f32,
        limit: usize,
        wanted: &Value,
    ) -> Result<Vec<Duplicate>, StoreError> {
        let work = async {
            let mut tx = Transaction::begin(&self.pool, super::search::BOUNDED).await?;
            let found = sqlx::query_file_as!(
                Duplicate,
                "sql/queries/find_duplicates.sql",
                note_id,
                version,
                reach.tenant_id,
                reach.project_id.as_deref(),
                reach.agent_id.as_deref(),
                f64::from(min_similarity),
                limit as i64,
                wanted
            )
            .fetch_all(&mut *tx)
            .await?;
            tx.commit().await?;
            Ok(found)
        };
        self.measured("search", work).await
    }
}

/// The columns of notes, for a statement that writes them.
struct Columns<'n> {
    notes: Vec<&'n AddedNote>,
}

impl<'n> Columns<'n> {
    fn of(notes: Vec<&'n AddedNote>) -> Self {
        Self { notes }
    }

    fn all<T>(&self, of: impl Fn(&'n AddedNote) -> T) -> Vec<T> {
        self.notes.iter().map(|note| of(note)).collect()
    }
}

/// Executes a statement of the columns of notes; sqlx checks each file apart.
macro_rules! write_columns {
    ($file:literal, $tx:expr, $columns:expr $(, $more:expr)*) => {{
        let columns = $columns;
        sqlx::query_file_as!(
            WrittenNote,
            $file,
            &columns.all(|note| note.note_id),
            &columns.all(|note| &*note.tenant_id) as _,
            &columns.all(|note| &*note.project_id) as _,
            &columns.all(|note| &*note.agent_id) as _,
            &columns.all(|note| &*note.scope) as _,
            &columns.all(|note| &*note.kind) as _,
            &columns.all(|note| note.key.as_deref()) as _,
            &columns.all(|note| &*note.text) as _,
            &columns.all(|note| note.importance),
            &columns.all(|note| note.confidence),
            &columns.all(|note| note.expires_at) as _,
            &columns.all(|note| Json(&*note.source_ref)) as _,
            &columns.all(|note| note.title.as_deref()) as _,
            &columns.all(|note| Json(&note.metadata)) as _
            $(, $more)*
        )
        .fetch_all(&mut **$tx)
        .await?
    }};
}

/// Writes the notes with ids of the client's, then the others. `None` if `reach` does not have one of the first.
async fn put(
    tx: &mut Transaction,
    given: &Columns<'_>,
    named: &Columns<'_>,
    reach: &Reach,
) -> Result<Option<Vec<WrittenNote>>, sqlx::Error> {
    let mut written = Vec::new();
    if !given.notes.is_empty() {
        written = write_columns!(
            "sql/queries/put_notes.sql",
            tx,
            given,
            reach.tenant_id,
            reach.project_id.as_deref(),
            reach.agent_id.as_deref()
        );
        if written.len() < given.notes.len() {
            return Ok(None);
        }
    }
    if !named.notes.is_empty() {
        written.extend(write_columns!("sql/queries/add_notes.sql", tx, named));
    }
    Ok(Some(written))
}

/// The row of a note that was added.
struct WrittenNote {
    note_id: Uuid,
    tenant_id: String,
    project_id: String,
    agent_id: String,
    scope: String,
    key: Option<String>,
    is_new: bool,
}

/// The ids under which `notes` are there; `None` if one of them is not.
fn ids_of(notes: &[AddedNote], written: &[WrittenNote]) -> Option<Vec<Uuid>> {
    type Name<'n> = (&'n str, &'n str, &'n str, &'n str, &'n str);
    let by_key: HashMap<Name<'_>, Uuid> = written
        .iter()
        .filter_map(|row| {
            let key = row.key.as_deref()?;
            let name = (
                &*row.tenant_id,
                &*row.project_id,
                &*row.agent_id,
                &*row.scope,
                key,
            );
            Some((name, row.note_id))
        })
        .collect();
    let new: HashSet<Uuid> = written.iter().map(|row| row.note_id).collect();
    let id_of = |note: &AddedNote| match note.key.as_deref() {
        Some(key) => {
            let name = (
                &*note.tenant_id,
                &*note.project_id,
                &*note.agent_id,
                &*note.scope,
                key,
            );
            by_key.get(&name).copied()
        }
        None => Some(note.note_id).filter(|id| new.contains(id)),
    };
    (written.len() == notes.len()).then(|| notes.iter().map(id_of).collect())?
}
