//! The transaction that commits chunks and vectors of a batch of notes.

mod locked;
mod rows;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use uuid::Uuid;

use super::{CollectionRow, Limit, LiveChunk, Store, StoreError, Version};
use crate::note::{AccessHash, Labels, TextHash};
use locked::{Locked, lock, unchanged};
use rows::{Written, statements, write};

/// The new chunks and vectors of a note.
#[derive(Debug)]
pub struct NoteWrite<'a> {
    /// It may be deleted: then there are no chunks to write.
    pub note_id: Uuid,
    /// The hash of the whole text.
    pub text_hash: TextHash,
    /// Its chunks in order. Without chunks the note leaves the index.
    pub chunks: Vec<ChunkWrite<'a>>,
    /// The mean of the chunks' vectors; `None` when there are no chunks, or one has no vector.
    pub pooled: Option<Vec<f32>>,
    /// The hash of the access labels of its points; `None` when it gets no points, or points of a
    /// chunk without a vector.
    pub access: Option<AccessHash>,
    /// Whether the note is live. The chunks of a note that is not live stay as they are: if it
    /// becomes live again, its text need not be embedded again.
    pub live: bool,
    /// The labels of its row as it was loaded; `None` when the row is deleted.
    pub labels: Option<&'a Labels>,
    /// Whether Postgres may have chunks of it already.
    pub had_chunks: bool,
}

impl<'a> NoteWrite<'a> {
    /// A note that has one chunk, for a write of which nothing stays.
    fn of_chunk(chunk: &'a LiveChunk) -> Self {
        let text = chunk.text.as_deref().unwrap_or_default();
        let write = ChunkWrite {
            lead: "",
            chunk_id: chunk.chunk_id,
            chunk_index: chunk.chunk_index,
            start: chunk.start,
            end: chunk.end,
            parent: None,
            text,
            hash: TextHash::of(text),
            vector: chunk.vector.as_deref().map(Arc::from),
        };
        Self {
            note_id: chunk.note_id,
            text_hash: write.hash,
            chunks: vec![write],
            pooled: chunk.vector.clone(),
            access: None,
            live: true,
            labels: Some(&chunk.labels),
            had_chunks: true,
        }
    }
}

/// A chunk and its vector.
#[derive(Debug, Clone)]
pub struct ChunkWrite<'a> {
    /// See [`crate::note::chunk_id`].
    pub chunk_id: Uuid,
    /// 0 for the first chunk of the note.
    pub chunk_index: u32,
    /// Byte offset of the first byte in the note's text.
    pub start: usize,
    /// Byte offset behind the last byte.
    pub end: usize,
    /// Where the piece of the note that it was cut from begins and ends.
    pub parent: Option<(usize, usize)>,
    /// What is embedded before `text`.
    pub lead: &'a str,
    /// `note.text[start..end]`
    pub text: &'a str,
    /// The hash of `lead` and `text`.
    pub hash: TextHash,
    /// The vector of both; `None` while the provider cannot make it.
    pub vector: Option<Arc<[f32]>>,
}

/// What a commit did.
#[derive(Debug)]
pub struct Committed {
    /// The notes that were written. The others lost their lease, or an application holds, deletes or
    /// moves their row; a later claim handles them.
    pub notes: HashSet<Uuid>,
    /// Those that were committed before.
    pub indexed: HashSet<Uuid>,
    /// The notes of which no chunk has changed, and the revision of their points, all of which the
    /// index has confirmed.
    pub unchanged: HashMap<Uuid, i64>,
    /// The collections that must have the points now.
    pub targets: Vec<Target>,
}

/// A collection that must have the points of a commit.
#[derive(Debug)]
pub struct Target {
    /// Its name in the engine.
    pub collection: String,
    /// Whether a rebuild is filling it. Then it may lack points of earlier commits.
    pub is_building: bool,
}

impl From<CollectionRow> for Target {
    fn from(row: CollectionRow) -> Self {
        Self {
            is_building: row.is_building(),
            collection: row.name,
        }
    }
}

/// The access labels of notes, one array for each column.
struct AccessColumns<'a>([Vec<&'a str>; 4]);

impl<'a> AccessColumns<'a> {
    fn of(notes: &[&'a NoteWrite<'a>]) -> Self {
        let column = |label: fn(&Labels) -> &str| -> Vec<&'a str> {
            notes.iter().map(|n| n.labels.map_or("", label)).collect()
        };
        Self([
            column(|labels| &labels.tenant_id),
            column(|labels| &labels.project_id),
            column(|labels| &labels.agent_id),
            column(|labels| &labels.scope),
        ])
    }
}

impl Store {
    /// Writes chunks, vectors and pooled vectors of all notes whose lease is still held under
    /// `token`, in one transaction.
    pub async fn commit(
        &self,
        version: &str,
        dim: usize,
        token: i64,
        notes: &[&NoteWrite<'_>],
    ) -> Result<Committed, StoreError> {
        let work = async {
            if let Some(committed) = self.commit_at_once(version, dim, token, notes).await? {
                return Ok(committed);
            }
            let mut notes = notes.to_vec();
            loop {
                let mut tx = self.begin().await?;
                let locked = lock(&mut tx, version, token, &notes).await?;
                let (mut targets, mut indexed, mut moved) =
                    (Vec::new(), Vec::new(), HashSet::new());
                for rows in statements(&notes, &locked) {
                    let written = write(&mut *tx, version, dim, token, &rows).await?;
                    let written = written.ok_or_else(settings_were_lost)?;
                    let kept: HashSet<Uuid> = written.notes.into_iter().collect();
                    moved.extend(locked.notes.difference(&kept).copied());
                    (targets, indexed) = (written.targets, written.indexed);
                }
                if moved.is_empty() {
                    tx.commit().await?;
                    return Ok(Committed {
                        unchanged: unchanged(&notes, &locked),
                        notes: locked.notes,
                        indexed: indexed.into_iter().collect(),
                        targets,
                    });
                }
                // Their access labels have changed since they were locked, so the last statements left them out. A
                // part of a note must not be committed.
                tx.rollback().await?;
                notes.retain(|note| !moved.contains(&note.note_id));
            }
        };
        // The commit of a note of many megabytes takes longer.
        self.measured_within(Limit::Batch, "commit", work).await
    }

    /// Whether Postgres takes a commit and an ack of the note of this chunk, which is indexed already.
    /// Nothing of it stays. `None` if another transaction has the note.
    pub async fn accepts(
        &self,
        version: &Version,
        chunk: &LiveChunk,
    ) -> Result<Option<bool>, StoreError> {
        let Version { name, dim, .. } = version;
        let work = async {
            let mut tx = self.begin().await?;
            let token =
                sqlx::query_file_scalar!("sql/queries/lock_indexed_note.sql", chunk.note_id, name);
            let Some(token) = token.fetch_optional(&mut *tx).await? else {
                tx.rollback().await?;
                return Ok(None);
            };
            let note = NoteWrite::of_chunk(chunk);
            let locked = Locked {
                notes: [chunk.note_id].into(),
                ..Locked::default()
            };
            for rows in statements(&[&note], &locked) {
                let written = write(&mut *tx, name, *dim, token, &rows).await?;
                if written.ok_or_else(settings_were_lost)?.notes.is_empty() {
                    tx.rollback().await?;
                    return Ok(None);
                }
            }
            sqlx::query_file!("sql/queries/requeue.sql", name, &[chunk.note_id][..], 0.0)
                .execute(&mut *tx)
                .await?;
            // What would be checked at the end.
            sqlx::raw_sql("set constraints all immediate")
                .execute(&mut *tx)
                .await?;
            tx.rollback().await?;
            Ok(Some(true))
        };
        match self.measured_within(Limit::Batch, "commit", work).await {
            Err(error) if error.may_be_data() => Ok(Some(false)),
            done => done,
        }
    }

    /// Writes the notes with one statement and no transaction. `None` if one of them had chunks, if the
    /// rows are too many, or if a connection pooler keeps the settings from Postgres that the statement
    /// needs; then nothing is written.
    async fn commit_at_once(
        &self,
        version: &str,
        dim: usize,
        token: i64,
        notes: &[&NoteWrite<'_>],
    ) -> Result<Option<Committed>, StoreError> {
        if notes.iter().any(|n| n.had_chunks) || !self.has_settings.load(Ordering::Relaxed) {
            return Ok(None);
        }
        // The statement locks the notes, and leaves out what it cannot lock.
        let ids = || notes.iter().map(|n| n.note_id);
        let locked = Locked {
            notes: ids().collect(),
            indexed: ids().collect(),
            ..Locked::default()
        };
        let [rows] = &statements(notes, &locked)[..] else {
            return Ok(None);
        };
        let Some(Written {
            notes,
            indexed,
            targets,
        }) = write(&self.keyed, version, dim, token, rows).await?
        else {
            self.has_settings.store(false, Ordering::Relaxed);
            return Ok(None);
        };
        Ok(Some(Committed {
            notes: notes.into_iter().collect(),
            indexed: indexed.into_iter().collect(),
            unchanged: HashMap::new(),
            targets,
        }))
    }
}

/// Between `begin` and a statement, a connection pooler has given the transaction another connection.
fn settings_were_lost() -> StoreError {
    StoreError::Unavailable("a transaction has lost its settings".to_owned())
}
