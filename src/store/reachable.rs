//! Notes as the HTTP API reads and writes them: each statement is limited to what a key reaches.

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::value::RawValue;
use sqlx::types::Json;
use utoipa::ToSchema;
use uuid::Uuid;

use super::migrations::is_locked_out;
use super::write::{SEVERAL_LIMIT, WRITE, WRITE_SEVERAL};
use super::{LOCKED_PAUSE, Reach, Store, StoreError, Transaction};

/// A note that a key reaches.
#[derive(Debug)]
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
    pub kind: String,
    pub key: Option<String>,
    pub title: Option<String>,
    pub text: String,
    pub importance: f32,
    pub confidence: f32,
    pub status: String,
    pub updated_at: DateTime<Utc>,
    pub expires_at: Option<DateTime<Utc>>,
    /// Whether a worker still has to index it, or it is dead-lettered.
    pub waits: bool,
    /// What rejected it, if it is dead-lettered.
    pub dead_by: Option<String>,
    /// Whether it came without its text.
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
    /// Its id.
    pub chunk_id: Uuid,
    /// Its position in the note, from 0.
    pub chunk_index: i32,
    /// The byte offset in the note's text (UTF-8) where it begins.
    pub start_offset: i32,
    /// The byte offset where it ends. The next chunk may begin before it.
    pub end_offset: i32,
    /// Its text.
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
}

/// What to change of a note; `None` leaves a column as it is.
#[derive(Debug, Default)]
#[expect(
    missing_docs,
    reason = "the columns of the same names say what they are"
)]
pub struct NoteChange {
    pub text: Option<String>,
    pub scope: Option<String>,
    pub kind: Option<String>,
    pub importance: Option<f32>,
    pub confidence: Option<f32>,
    pub status: Option<String>,
    pub key: Option<Option<String>>,
    pub expires_at: Option<Option<DateTime<Utc>>>,
    pub title: Option<Option<String>>,
}

/// A note like another one.
#[derive(Debug)]
pub struct Duplicate {
    /// Its id.
    pub note_id: Uuid,
    /// The application's name for it.
    pub key: Option<String>,
    /// Cosine of the two pooled vectors, -1 to 1.
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
        let work = async {
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
            Ok(found.fetch_all(&self.pool).await?)
        };
        self.measured("load", work).await
    }

    /// How many bytes the texts of those of these notes have that `reach` has.
    pub async fn note_bytes(&self, notes: &[Uuid], reach: &Reach) -> Result<u64, StoreError> {
        let work = async {
            let bytes = sqlx::query_file_scalar!(
                "sql/queries/note_bytes.sql",
                notes,
                reach.tenant_id,
                reach.project_id.as_deref(),
                reach.agent_id.as_deref()
            );
            Ok(bytes.fetch_one(&self.pool).await? as u64)
        };
        self.measured("load", work).await
    }

    /// At most `max_bytes` of the text of a note, from the byte `offset` on; `None` if `reach` has no note of this id.
    pub async fn note_part(
        &self,
        note_id: Uuid,
        reach: &Reach,
        offset: i32,
        max_bytes: i32,
    ) -> Result<Option<NotePart>, StoreError> {
        let work = async {
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
            Ok(part.fetch_optional(&self.pool).await?)
        };
        self.measured("load", work).await
    }

    /// The chunks of a note, in their order; none if `reach` has no note of this id.
    pub async fn reachable_chunks(
        &self,
        note_id: Uuid,
        reach: &Reach,
        version: &str,
    ) -> Result<Vec<ReachableChunk>, StoreError> {
        let work = async {
            let chunks = sqlx::query_file_as!(
                ReachableChunk,
                "sql/queries/note_chunks.sql",
                note_id,
                reach.tenant_id,
                reach.project_id.as_deref(),
                reach.agent_id.as_deref(),
                version
            );
            Ok(chunks.fetch_all(&self.pool).await?)
        };
        self.measured("load", work).await
    }

    /// Writes notes; all or none. A note whose key another note has becomes that note: it is replaced if it
    /// differs. Returns the ids in the order of `notes`: that of an [`AddedNote`], or that of the note that had its
    /// key. No two of `notes` may have the same key. Fails if a trigger changed an id or a key, or dropped a row.
    pub async fn add_notes(&self, notes: &[AddedNote]) -> Result<Vec<Uuid>, StoreError> {
        let column = |of: fn(&AddedNote) -> &str| notes.iter().map(of).collect::<Vec<&str>>();
        let ids: Vec<Uuid> = notes.iter().map(|note| note.note_id).collect();
        let keys: Vec<Option<&str>> = notes.iter().map(|note| note.key.as_deref()).collect();
        let titles: Vec<Option<&str>> = notes.iter().map(|note| note.title.as_deref()).collect();
        let importance: Vec<f32> = notes.iter().map(|note| note.importance).collect();
        let confidence: Vec<f32> = notes.iter().map(|note| note.confidence).collect();
        let expires: Vec<Option<DateTime<Utc>>> =
            notes.iter().map(|note| note.expires_at).collect();
        let sources: Vec<Json<&RawValue>> =
            notes.iter().map(|note| Json(&*note.source_ref)).collect();
        let work = async {
            let began = Instant::now();
            let is_one = notes.len() == 1;
            let (tx, written) = loop {
                let begin = if is_one { WRITE } else { WRITE_SEVERAL };
                let mut tx = Transaction::begin(&self.pool, begin).await?;
                let written = sqlx::query_file_as!(
                    WrittenNote,
                    "sql/queries/add_notes.sql",
                    &ids,
                    &column(|note| &note.tenant_id) as _,
                    &column(|note| &note.project_id) as _,
                    &column(|note| &note.agent_id) as _,
                    &column(|note| &note.scope) as _,
                    &column(|note| &note.kind) as _,
                    &keys as _,
                    &column(|note| &note.text) as _,
                    &importance,
                    &confidence,
                    &expires as _,
                    &sources as _,
                    &titles as _
                );
                match written.fetch_all(&mut *tx).await {
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
            let ids = ids_of(notes, &written).ok_or_else(|| {
                let reason =
                    "a trigger of the application changed an id or a key, or dropped a row";
                StoreError::Rejected(reason.to_owned())
            })?;
            Ok((tx, ids))
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
        let work = async {
            let mut tx = Transaction::begin(&self.pool, WRITE).await?;
            let changed = sqlx::query_file!(
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
                change.title.as_ref().and_then(Option::as_deref)
            )
            .execute(&mut *tx)
            .await?;
            Ok((tx, changed.rows_affected() > 0))
        };
        self.write("commit", work).await
    }

    /// Deletes a note. `false` if `reach` has no note of this id.
    pub async fn remove_note(&self, note_id: Uuid, reach: &Reach) -> Result<bool, StoreError> {
        let work = async {
            let mut tx = Transaction::begin(&self.pool, WRITE).await?;
            let removed = sqlx::query_file!(
                "sql/queries/remove_note.sql",
                note_id,
                reach.tenant_id,
                reach.project_id.as_deref(),
                reach.agent_id.as_deref()
            )
            .execute(&mut *tx)
            .await?;
            Ok((tx, removed.rows_affected() > 0))
        };
        self.write("commit", work).await
    }

    /// How many of these notes a worker still has to bring into step, and how many are
    /// dead-lettered.
    pub async fn notes_waiting(
        &self,
        notes: &[Uuid],
        version: &str,
    ) -> Result<(i64, i64), StoreError> {
        let work = async {
            let row = sqlx::query_file!("sql/queries/notes_waiting.sql", notes, version)
                .fetch_one(&self.pool)
                .await?;
            Ok((row.waiting, row.dead))
        };
        self.measured("lookup", work).await
    }

    /// The live notes that are most like a note, by their pooled vectors: at most `limit`, of a
    /// cosine of at least `min_similarity`.
    pub async fn find_duplicates(
        &self,
        note_id: Uuid,
        version: &str,
        reach: &Reach,
        min_similarity: f32,
        limit: usize,
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
                limit as i64
            )
            .fetch_all(&mut *tx)
            .await?;
            tx.commit().await?;
            Ok(found)
        };
        self.measured("search", work).await
    }
}

/// The row of a note that was added.
struct WrittenNote {
    note_id: Uuid,
    tenant_id: String,
    project_id: String,
    agent_id: String,
    scope: String,
    key: Option<String>,
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
