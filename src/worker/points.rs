//! Writes the points of a batch to the index: upserts the new ones, relabels those of notes whose text
//! did not change, and deletes the older ones.

use std::collections::{HashMap, HashSet};

use uuid::Uuid;

use super::Checkpoint;
use super::batch::Batch;
use super::plan::PlannedWrite;
use super::stage::stage;
use crate::index::{Filter, IndexError, Payload, Point, Relabel, UpsertMode};
use crate::note::Note;
use crate::serving::{self, ServingError};
use crate::store::{ChunkWrite, Committed, LiveChunk, Target, Version};

/// A note with fewer chunks is upserted whole. Qdrant takes about 0.3 ms to relabel a note of a few
/// points, because it does one after the other, and 0.06 ms to upsert a point of 384 dimensions.
const RELABEL_FROM: usize = 8;

/// Bytes of points that a batch makes at once, about: several requests.
const POINTS_BYTES: usize = 8 << 20;

/// Bytes of a point without its vector, about.
const POINT_BYTES: usize = 2 << 10;

/// Whether a batch expects to find older points of its notes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Older {
    Likely,
    /// Its notes are new, so only a batch that lost its lease can have left some, of a life before this one. The index
    /// is asked first: a server executes the writes of a shard one after the other, and a delete would stand in that
    /// line.
    Unlikely,
}

impl Batch<'_> {
    /// Writes the new points and then deletes the old ones, so that the note is searchable
    /// all the time. Returns how many points were written.
    pub(super) async fn index_points(
        &self,
        committed: &Committed,
        done: &[&PlannedWrite<'_>],
    ) -> Result<u64, ServingError> {
        if done.is_empty() {
            return Ok(0);
        }
        if committed.targets.is_empty() {
            return Err(self.no_collection());
        }
        let (unchanged, changed): (Vec<&PlannedWrite>, Vec<&PlannedWrite>) = done
            .iter()
            .partition(|write| self.relabel_of(write, &committed.unchanged).is_some());
        let relabels = unchanged
            .iter()
            .filter_map(|write| self.relabel_of(write, &committed.unchanged));
        let relabels: Vec<Relabel> = relabels.collect();
        let relabelled = chunk_ids(&unchanged);
        for target in &committed.targets {
            let collection = &target.collection;
            let has_all = !target.is_building
                && self
                    .relabel_points(collection, &relabels, &relabelled)
                    .await?;
            let missing = if has_all { &changed } else { done };
            self.upsert_writes(collection, missing).await?;
        }
        self.shared.call_breakpoint(Checkpoint::Upserted).await;
        let is_new = |write: &&PlannedWrite| !committed.indexed.contains(&write.chunked.note_id);
        let found = match done.iter().all(is_new) {
            true => Older::Unlikely,
            false => Older::Likely,
        };
        let notes = done.iter().map(|write| write.chunked.note_id).collect();
        self.prune(&committed.targets, notes, chunk_ids(done), found)
            .await?;
        self.shared.call_breakpoint(Checkpoint::Pruned).await;
        Ok(done
            .iter()
            .map(|write| write.rows.chunks.len() as u64)
            .sum())
    }

    /// Acking without a target collection would lose the notes. The next
    /// [`serving::ensure_ready`] registers one.
    pub(super) fn no_collection(&self) -> ServingError {
        ServingError::Mismatch(format!(
            "no collection is registered for {}",
            self.shared.pipeline.version.name
        ))
    }

    /// If no chunk of a note has changed: what makes its points those of this batch, and sends no vector.
    fn relabel_of(
        &self,
        write: &PlannedWrite<'_>,
        unchanged: &HashMap<Uuid, i64>,
    ) -> Option<Relabel> {
        let PlannedWrite { chunked, rows } = write;
        let from = *unchanged.get(&chunked.note_id)?;
        let first = rows.chunks.first()?;
        let to = self.payload(chunked.note.as_ref()?, first).note;
        (rows.chunks.len() >= RELABEL_FROM).then_some(Relabel { from, to })
    }

    /// Returns whether the collection had all points of the `chunks` of these notes.
    async fn relabel_points(
        &self,
        collection: &str,
        relabels: &[Relabel],
        chunks: &[Uuid],
    ) -> Result<bool, ServingError> {
        if relabels.is_empty() {
            return Ok(true);
        }
        let notes: Vec<Uuid> = relabels.iter().map(|relabel| relabel.to.note_id).collect();
        let found = async {
            let index = &self.shared.pipeline.serving.index;
            // A Postgres that has lost transactions may issue a token again. Points that have its
            // revision before the relabel are of another commit: an upsert replaces them.
            let others = Filter {
                note_ids: Some(notes.clone()),
                revision_above: Some(self.token - 1),
                ..Filter::default()
            };
            if index.count(collection, &others).await? > 0 {
                return Ok(0);
            }
            let relabelled = async { Ok(index.relabel(collection, relabels).await?) };
            self.send(&notes, relabelled).await?;
            let written = Filter {
                chunk_ids: Some(chunks.to_vec()),
                ..Filter::of_revision(self.token)
            };
            Ok(index.count(collection, &written).await?)
        };
        let found = match stage("relabel", found).await {
            // The upsert finds out whether the collection was retired.
            Err(ServingError::Index(IndexError::NotFound { .. })) => return Ok(false),
            found => found?,
        };
        let has_all = found == chunks.len() as u64;
        if !has_all {
            tracing::debug!(
                collection,
                found,
                chunks = chunks.len(),
                "points missing, upserting all"
            );
        }
        Ok(has_all)
    }

    /// Makes the points of these notes and upserts them, some at a time.
    async fn upsert_writes(
        &self,
        collection: &str,
        writes: &[&PlannedWrite<'_>],
    ) -> Result<(), ServingError> {
        let with_notes = writes.iter().filter_map(|write| {
            let note = write.chunked.note.as_ref()?;
            Some(write.rows.chunks.iter().map(move |chunk| (note, chunk)))
        });
        let chunks: Vec<(&Note, &ChunkWrite)> = with_notes.flatten().collect();
        for chunks in chunks.chunks(self.points_at_once()) {
            let points = chunks.iter().map(|(note, chunk)| self.point(note, chunk));
            self.upsert(collection, &points.collect::<Vec<_>>()).await?;
        }
        Ok(())
    }

    pub(super) fn points_at_once(&self) -> usize {
        (POINTS_BYTES / bytes_of_one(&self.shared.pipeline.version)).max(1)
    }

    pub(super) async fn upsert(
        &self,
        collection: &str,
        points: &[Point],
    ) -> Result<(), ServingError> {
        if points.is_empty() {
            return Ok(());
        }
        let notes: HashSet<Uuid> = points.iter().map(|p| p.payload.note.note_id).collect();
        let notes: Vec<Uuid> = notes.into_iter().collect();
        let index = &self.shared.pipeline.serving.index;
        let upserted = async {
            let upserted = index.upsert(collection, points, UpsertMode::NotNewer);
            let upserted = stage("upsert", upserted).await;
            self.unless_retired(collection, upserted).await
        };
        self.send(&notes, upserted).await
    }

    /// Sends a write of points of `notes`, and records whether the index has answered it.
    async fn send(
        &self,
        notes: &[Uuid],
        write: impl Future<Output = Result<(), ServingError>>,
    ) -> Result<(), ServingError> {
        let in_flight = &self.shared.leases;
        in_flight.sending(self.token, notes);
        let written = write.await;
        let is_answered = !written.as_ref().is_err_and(|error| {
            // The index may have applied the write, or may still apply it.
            matches!(error, ServingError::Index(IndexError::Unavailable { .. }))
        });
        in_flight.sent(self.token, notes, is_answered);
        written
    }

    /// Deletes the points of `notes` with this batch's revision or an older one, except those
    /// it has `written`. Points of the same revision count too: a retry under the same token
    /// may have fewer chunks than the first try.
    pub(super) async fn prune(
        &self,
        targets: &[Target],
        notes: Vec<Uuid>,
        written: Vec<Uuid>,
        found: Older,
    ) -> Result<(), ServingError> {
        let older = Filter {
            note_ids: Some(notes),
            except_chunk_ids: Some(written),
            revision_below: Some(self.token + 1),
            ..Filter::default()
        };
        for Target { collection, .. } in targets {
            let index = &self.shared.pipeline.serving.index;
            let deleted = async {
                if found == Older::Unlikely && index.count(collection, &older).await? == 0 {
                    return Ok(());
                }
                index.delete(collection, &older).await
            };
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
    ) -> Result<(), ServingError> {
        let Err(error @ IndexError::NotFound { .. }) = written else {
            return Ok(written?);
        };
        let (store, version) = self.shared.store_and_version();
        let targets = store.collections(version).await?;
        if targets.iter().any(|target| target.name == collection) {
            return Err(error.into());
        }
        tracing::debug!(collection, "collection retired before the write");
        Ok(())
    }

    pub(super) fn point(&self, note: &Note, chunk: &ChunkWrite<'_>) -> Point {
        Point {
            payload: self.payload(note, chunk),
            vector: chunk.vector.as_deref().map(<[f32]>::to_vec),
            lead: chunk.lead.to_owned(),
            text: chunk.text.to_owned(),
        }
    }

    fn payload(&self, note: &Note, chunk: &ChunkWrite<'_>) -> Payload {
        let live = LiveChunk {
            chunk_id: chunk.chunk_id,
            note_id: note.note_id,
            chunk_index: chunk.chunk_index,
            start: chunk.start,
            end: chunk.end,
            revision: self.token,
            lead: String::new(),
            text: None,
            has_vector: chunk.vector.is_some(),
            awaits_vector: chunk.vector.is_none(),
            vector: None,
            status: note.status.clone(),
            expires_at: note.expires_at,
            labels: note.labels.clone(),
            unreadable: None,
        };
        serving::payload(&live, &self.shared.pipeline.version.name)
    }
}

/// What a point of this version takes, about.
pub(super) fn bytes_of_one(version: &Version) -> usize {
    size_of::<f32>() * version.dim + POINT_BYTES
}

fn chunk_ids(writes: &[&PlannedWrite<'_>]) -> Vec<Uuid> {
    let chunks = writes.iter().flat_map(|write| &write.rows.chunks);
    chunks.map(|chunk| chunk.chunk_id).collect()
}
