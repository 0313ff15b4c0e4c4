//! Writes the points of a batch to the index: upserts the new ones, deletes the older ones.

use std::collections::HashSet;

use uuid::Uuid;

use super::batch::Batch;
use super::plan::PlannedWrite;
use super::stage::stage;
use super::{Checkpoint, WorkerContext};
use crate::index::{Filter, IndexError, Point, UpsertMode};
use crate::note::Note;
use crate::registry::{self, IndexContext, RegistryError};
use crate::store::{ChunkWrite, LiveChunk};

impl Batch<'_> {
    /// Upserts the new points and then deletes the old ones, so that the note is searchable
    /// all the time. Returns how many points were written.
    pub(super) async fn index_points(
        &self,
        collections: &[String],
        done: &[&PlannedWrite<'_>],
    ) -> Result<u64, RegistryError> {
        if done.is_empty() {
            return Ok(0);
        }
        if collections.is_empty() {
            return Err(self.no_collection());
        }
        let mut points = Vec::new();
        for PlannedWrite { chunked, rows } in done {
            if let Some(note) = &chunked.note {
                points.extend(rows.chunks.iter().map(|chunk| self.point(note, chunk)));
            }
        }
        let written: Vec<Uuid> = points.iter().map(|p| p.payload.chunk_id).collect();
        let count = written.len() as u64;
        self.upsert(collections, points).await?;
        self.shared.call_breakpoint(Checkpoint::Upserted).await;
        let done = done.iter().map(|write| write.chunked.note_id).collect();
        self.prune(collections, done, written).await?;
        self.shared.call_breakpoint(Checkpoint::Pruned).await;
        Ok(count)
    }

    /// Acking without a target collection would lose the notes. The next
    /// [`registry::ensure_ready`] registers one.
    pub(super) fn no_collection(&self) -> RegistryError {
        RegistryError::Mismatch(format!(
            "no collection is registered for {}",
            self.shared.context.version.name
        ))
    }

    pub(super) async fn upsert(
        &self,
        collections: &[String],
        points: Vec<Point>,
    ) -> Result<(), RegistryError> {
        let notes: HashSet<Uuid> = points.iter().map(|p| p.payload.note_id).collect();
        let notes: Vec<Uuid> = notes.into_iter().collect();
        let in_flight = &self.shared.leases;
        in_flight.sending(self.token, &notes);
        let upserted = self.upsert_into(collections, points).await;
        let is_answered = !upserted.as_ref().is_err_and(|error| {
            // The index may have applied the write, or may still apply it.
            matches!(error, RegistryError::Index(IndexError::Unavailable { .. }))
        });
        in_flight.sent(self.token, &notes, is_answered);
        upserted
    }

    async fn upsert_into(
        &self,
        collections: &[String],
        points: Vec<Point>,
    ) -> Result<(), RegistryError> {
        if points.is_empty() {
            return Ok(());
        }
        let index = &self.shared.context.stores.index;
        for collection in collections {
            let upserted = index.upsert(collection, points.clone(), UpsertMode::NotNewer);
            let upserted = stage("upsert", upserted).await;
            self.unless_retired(collection, upserted).await?;
        }
        Ok(())
    }

    /// Deletes the points of `notes` with this batch's revision or an older one, except those
    /// it has `written`. Points of the same revision count too: a retry under the same token
    /// may have fewer chunks than the first try.
    pub(super) async fn prune(
        &self,
        collections: &[String],
        notes: Vec<Uuid>,
        written: Vec<Uuid>,
    ) -> Result<(), RegistryError> {
        let older = Filter {
            note_ids: Some(notes),
            except_chunk_ids: Some(written),
            revision_below: Some(self.token + 1),
            ..Filter::default()
        };
        for collection in collections {
            let deleted = self.shared.context.stores.index.delete(collection, &older);
            let deleted = stage("prune", deleted).await;
            self.unless_retired(collection, deleted).await?;
        }
        Ok(())
    }

    /// Ignores a missing collection if a rebuild or a drop retired it between this batch's
    /// commit and its write: the collection that replaces it has these chunks already.
    async fn unless_retired(
        &self,
        collection: &str,
        written: Result<(), IndexError>,
    ) -> Result<(), RegistryError> {
        let Err(error @ IndexError::NotFound { .. }) = written else {
            return Ok(written?);
        };
        let WorkerContext {
            stores: IndexContext { store, .. },
            version,
            ..
        } = &self.shared.context;
        let targets = store.collections(&version.name).await?;
        if targets.iter().any(|target| target.name == collection) {
            return Err(error.into());
        }
        tracing::debug!(collection, "collection retired before the write");
        Ok(())
    }

    pub(super) fn point(&self, note: &Note, chunk: &ChunkWrite<'_>) -> Point {
        let live = LiveChunk {
            chunk_id: chunk.chunk_id,
            note_id: note.note_id,
            chunk_index: chunk.chunk_index,
            start: chunk.start,
            end: chunk.end,
            revision: self.token,
            text: None,
            has_vector: chunk.vector.is_some(),
            awaits_vector: chunk.vector.is_none(),
            vector: None,
            status: note.status.clone(),
            expires_at: note.expires_at,
            labels: note.labels.clone(),
        };
        Point {
            payload: registry::payload(&live, &self.shared.context.version.name),
            vector: chunk.vector.as_deref().map(<[f32]>::to_vec),
            text: chunk.text.to_owned(),
        }
    }
}
