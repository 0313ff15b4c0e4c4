//! Applies deletions and access labels at once, also when the new text cannot be written, or waits
//! for its vector.

use std::collections::{HashMap, HashSet};

use uuid::Uuid;

use super::batch::Batch;
use super::lease::{self, Survived};
use super::plan::{self, ChunkedNote, PlannedWrite};
use super::points::Older;
use super::stage::stage;
use crate::error_class::ErrorClass;
use crate::note::{AccessHash, Note, TextHash};
use crate::serving::ServingError;
use crate::store::{ChunkWrite, LoadedNotes, OldChunk, Target};

impl Batch<'_> {
    /// Reads once more the rows of notes that wait for their vectors. Deletes the points of notes that
    /// are not live any more. Gives the points of notes with other access labels the new ones, and
    /// releases these notes, because the batch has loaded the old labels. Returns both.
    pub(super) async fn converge_changed_access(
        &self,
        waiting: &[&ChunkedNote],
    ) -> Result<HashSet<Uuid>, ServingError> {
        let ids: Vec<Uuid> = waiting.iter().map(|chunked| chunked.note_id).collect();
        let (store, _) = self.shared.store_and_version();
        let rows = stage("load", store.load_notes(&ids, 0)).await?;
        let has_changed = |chunked: &&&ChunkedNote| {
            let row = rows.notes.get(&chunked.note_id);
            let row = row.filter(|note| note.is_live(rows.now));
            let access = |note: &Note| note.labels.access();
            chunked.live
                && !rows.unreadable.contains_key(&chunked.note_id)
                && row.map(access) != chunked.note.as_ref().map(access)
        };
        let changed: Vec<Uuid> = waiting
            .iter()
            .filter(has_changed)
            .map(|chunked| chunked.note_id)
            .collect();
        if !changed.is_empty() {
            let live = self.converge_access(&changed, rows).await?;
            lease::release(self.shared, self.token, &live, Survived::Yes).await;
        }
        Ok(changed.into_iter().collect())
    }

    pub(super) async fn converge_access_and_release(&self) -> Result<(), ServingError> {
        let live = self.load_and_converge_access().await?;
        lease::release(self.shared, self.token, &live, Survived::Unknown).await;
        Ok(())
    }

    pub(super) async fn load_and_converge_access(&self) -> Result<Vec<Uuid>, ServingError> {
        let rows = stage("load", self.load(0)).await?;
        self.converge_access(&self.oldest_first, rows).await
    }

    /// Does what needs no text: converges notes that are not live, and gives the points of
    /// live notes the access labels of their rows. Returns the live notes.
    async fn converge_access(
        &self,
        notes: &[Uuid],
        mut rows: LoadedNotes,
    ) -> Result<Vec<Uuid>, ServingError> {
        let without_text = |id: &Uuid| {
            let note = rows.notes.remove(id);
            ChunkedNote {
                note_id: *id,
                live: note.as_ref().is_some_and(|note| note.is_live(rows.now)),
                note,
                hashed_chunks: Ok(Vec::new()),
            }
        };
        // A row that cannot be read may be live.
        let (live, gone): (Vec<ChunkedNote>, Vec<ChunkedNote>) = notes
            .iter()
            .map(without_text)
            .partition(|chunked| chunked.live || rows.unreadable.contains_key(&chunked.note_id));
        let writes: Vec<PlannedWrite> = gone.iter().map(plan::removal_of).collect();
        self.write_or_split(&writes, &mut HashSet::new()).await?;
        self.apply_access_labels(live.iter()).await?;
        Ok(live.iter().map(|chunked| chunked.note_id).collect())
    }

    /// Gives the points of notes whose text cannot be written now the access labels of their
    /// rows; the points keep their text. If Postgres or the index rejects the labels of one note, deletes
    /// its points, so that no search finds the note under labels that it no longer has.
    pub(super) async fn apply_access_labels<'c>(
        &self,
        chunked_notes: impl Iterator<Item = &'c ChunkedNote>,
    ) -> Result<(), ServingError> {
        let moved: Vec<(&Note, AccessHash)> = chunked_notes
            .filter_map(|chunked| self.moved(chunked))
            .collect();
        let mut groups: Vec<&[_]> = self.some_at_a_time(&moved).collect();
        while let Some(group) = groups.pop() {
            match Box::pin(self.upsert_under_new_labels(group)).await {
                Err(error) if error.class() == ErrorClass::Item => {
                    let (first, second) = group.split_at(group.len() / 2);
                    if !first.is_empty() {
                        groups.extend([second, first]);
                        continue;
                    }
                    tracing::warn!(
                        %error,
                        note_id = %group[0].0.note_id,
                        "could not give the points of a note its new labels, deleting them until it is indexed again"
                    );
                    self.delete_points(group).await?;
                }
                done => done?,
            }
        }
        Ok(())
    }

    /// Splits notes into groups. The claim has bounded the new texts of the batch, but these points are of the
    /// old texts. A note with more points than a group may have is a group of its own.
    fn some_at_a_time<'m, 'c>(
        &self,
        moved: &'m [(&'c Note, AccessHash)],
    ) -> impl Iterator<Item = &'m [(&'c Note, AccessHash)]> {
        let limit = self.points_at_once();
        let chunks =
            |(note, _): &(&Note, AccessHash)| self.notes[&note.note_id].chunk_count as usize;
        let mut rest = moved;
        std::iter::from_fn(move || {
            let mut sum = 0;
            let fits = rest.iter().take_while(|note| {
                sum += chunks(note);
                sum <= limit
            });
            let (group, others) = rest.split_at(fits.count().max(1).min(rest.len()));
            rest = others;
            (!group.is_empty()).then_some(group)
        })
    }

    /// The note and its labels, if its points have other labels, or may have.
    fn moved<'c>(&self, chunked: &'c ChunkedNote) -> Option<(&'c Note, AccessHash)> {
        let note = chunked.note.as_ref().filter(|_| chunked.live)?;
        let claimed = self.notes[&chunked.note_id];
        let access = note.labels.access();
        (claimed.chunk_count > 0 && claimed.access != Some(access)).then_some((note, access))
    }

    async fn upsert_under_new_labels(
        &self,
        moved: &[(&Note, AccessHash)],
    ) -> Result<(), ServingError> {
        let (store, version) = self.shared.store_and_version();
        let ids: Vec<Uuid> = moved.iter().map(|(note, _)| note.note_id).collect();
        let taking_over = store.take_over_chunks(version, self.token, &ids);
        let old = stage("take_over", taking_over).await?;
        if old.targets.is_empty() {
            return Err(self.no_collection());
        }
        // With the labels loaded at the start of the batch, not the current ones: the labels
        // recorded below must be those of the points.
        let by_id: HashMap<Uuid, &Note> = moved.iter().map(|(n, _)| (n.note_id, *n)).collect();
        let point = |chunk: &OldChunk| {
            let write = ChunkWrite {
                chunk_id: chunk.chunk_id,
                chunk_index: chunk.chunk_index,
                start: chunk.start,
                end: chunk.end,
                // Nothing of it is committed.
                parent: None,
                lead: &chunk.lead,
                text: &chunk.text,
                hash: TextHash::of_both(&chunk.lead, &chunk.text),
                vector: chunk.vector.clone(),
            };
            self.point(by_id[&chunk.note_id], &write)
        };
        for Target { collection, .. } in &old.targets {
            for chunks in old.chunks.chunks(self.points_at_once()) {
                let points: Vec<_> = chunks.iter().map(point).collect();
                self.upsert(collection, &points).await?;
            }
        }
        let written = old.chunks.iter().map(|chunk| chunk.chunk_id);
        self.prune(&old.targets, old.notes, written.collect(), Older::Likely)
            .await?;
        self.record_access(moved).await
    }

    async fn delete_points(&self, moved: &[(&Note, AccessHash)]) -> Result<(), ServingError> {
        let (store, version) = self.shared.store_and_version();
        let collections = store.collections(version).await?;
        let targets: Vec<Target> = collections.into_iter().map(Target::from).collect();
        let ids = moved.iter().map(|(note, _)| note.note_id).collect();
        self.prune(&targets, ids, Vec::new(), Older::Likely).await?;
        self.record_access(moved).await
    }

    async fn record_access(&self, moved: &[(&Note, AccessHash)]) -> Result<(), ServingError> {
        let access: Vec<(Uuid, AccessHash)> = moved
            .iter()
            .map(|(note, access)| (note.note_id, *access))
            .collect();
        let (store, version) = self.shared.store_and_version();
        Ok(store.record_access(version, self.token, &access).await?)
    }
}
