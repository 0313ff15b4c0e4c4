//! Writes chunks and vectors from Postgres as points to a collection, while workers write to
//! the same one.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio_util::task::TaskTracker;
use uuid::Uuid;

use super::{Serving, ServingError, payload};
use crate::index::{Filter, IndexError, Point, UpsertMode, VectorIndex};
use crate::store::{LiveChunk, Store};

/// A version in Postgres and a collection that holds it.
#[derive(Clone)]
pub struct CollectionTarget {
    /// Postgres: the source of truth.
    pub store: Store,
    /// The engine that has the collection.
    pub index: Arc<dyn VectorIndex>,
    /// The name of the embedding version.
    pub version: String,
    /// The name of the collection in the engine.
    pub collection: String,
    /// The writes in flight. The end of a job waits for them.
    pub writes: TaskTracker,
}

/// After this many refused points and no accepted one, the cause is the engine and not the
/// points.
const MAX_REFUSED: usize = 8;

/// The result of writing points.
#[derive(Debug, Default)]
pub struct Written {
    /// Those that the engine took.
    pub points: u64,
    /// Points that the engine refused.
    pub refused: Vec<Refused>,
}

/// A point that the engine refused.
#[derive(Debug, thiserror::Error)]
#[error("refused: point {chunk_id} of note {note_id}: {reason}; the note is in the outbox")]
#[expect(missing_docs, reason = "the message says what they are")]
pub struct Refused {
    pub chunk_id: Uuid,
    pub note_id: Uuid,
    pub reason: String,
}

/// Called for every finding, for `--verbose`.
pub type Notice = Arc<dyn Fn(String) + Send + Sync>;

impl CollectionTarget {
    /// A collection of the engine that has the index.
    pub fn new(serving: &Serving, version: &str, collection: String) -> Self {
        Self {
            store: serving.store.clone(),
            index: serving.index.clone(),
            version: version.to_owned(),
            collection,
            writes: TaskTracker::new(),
        }
    }

    /// The points of chunks that were read with text and vector. Chunks without a vector are left
    /// out.
    pub fn points(&self, chunks: Vec<LiveChunk>) -> Arc<[Point]> {
        chunks
            .into_iter()
            .filter_map(|chunk| self.point(chunk))
            .collect()
    }

    /// Writes points of chunks in Postgres.
    ///
    /// Between the read and this write a worker may have written the note again and pruned its
    /// older points, or the note may be deleted. The mode keeps a newer point. A point whose
    /// chunk is gone is removed here, because no worker would remove it. If the note comes back
    /// meanwhile, its worker writes it under a higher revision.
    ///
    /// The write runs to its end even if the caller is dropped. Otherwise a job that loses its
    /// lease halfway would leave points of deleted chunks in a collection that its successor
    /// has finished. See [`CollectionTarget::writes`].
    pub async fn write(
        &self,
        points: Arc<[Point]>,
        mode: UpsertMode,
    ) -> Result<Written, ServingError> {
        if points.is_empty() {
            return Ok(Written::default());
        }
        let target = self.clone();
        let writing = async move { target.write_points(&points, mode).await };
        let written = self.writes.spawn(writing).await;
        written.expect("a write does not panic and is not aborted")
    }

    async fn write_points(
        &self,
        points: &[Point],
        mode: UpsertMode,
    ) -> Result<Written, ServingError> {
        let sent: Vec<(Uuid, i64)> = points
            .iter()
            .map(|point| (point.payload.chunk_id, point.payload.note.revision))
            .collect();
        let upserted = self.upsert(points, mode).await;
        // Also after an error: the engine may have applied an upsert that it did not answer.
        let ids: Vec<Uuid> = sent.iter().map(|(id, _)| *id).collect();
        let gone = self.store.gone_chunks(&self.version, &ids).await?;
        if !gone.is_empty() {
            let seen = sent.into_iter().filter(|(id, _)| gone.contains(id));
            self.remove(seen.map(|(id, revision)| (id, Some(revision))))
                .await?;
        }
        Ok(upserted?)
    }

    /// Upserts points. A part that the engine refuses is halved until the point to blame is
    /// alone, and that point is left out. If the engine refuses [`MAX_REFUSED`] points and has
    /// accepted none, the upsert fails.
    async fn upsert(&self, points: &[Point], mode: UpsertMode) -> Result<Written, IndexError> {
        let mut written = Written::default();
        let mut parts = vec![points];
        while let Some(part) = parts.pop() {
            let upserted = self.index.upsert(&self.collection, part, mode);
            match upserted.await {
                Ok(()) => written.points += part.len() as u64,
                Err(IndexError::Refused { reason, .. }) if part.len() == 1 => {
                    let payload = &part[0].payload;
                    written.refused.push(Refused {
                        chunk_id: payload.chunk_id,
                        note_id: payload.note.note_id,
                        reason,
                    });
                }
                Err(error @ IndexError::Refused { .. })
                    if written.points == 0 && written.refused.len() >= MAX_REFUSED =>
                {
                    return Err(error);
                }
                Err(IndexError::Refused { .. }) => {
                    let (first, second) = part.split_at(part.len() / 2);
                    parts.extend([second, first]);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(written)
    }

    /// Removes points that were seen with a revision, but none that a worker has replaced since.
    /// A point without a revision was not written by ELF.
    pub async fn remove(
        &self,
        seen: impl Iterator<Item = (Uuid, Option<i64>)>,
    ) -> Result<(), IndexError> {
        let mut by_revision: BTreeMap<Option<i64>, Vec<Uuid>> = BTreeMap::new();
        for (chunk_id, revision) in seen {
            by_revision.entry(revision).or_default().push(chunk_id);
        }
        for (revision, chunk_ids) in by_revision {
            let filter = Filter {
                chunk_ids: Some(chunk_ids),
                revision_below: revision.map(|revision| revision + 1),
                ..Filter::default()
            };
            self.index.delete(&self.collection, &filter).await?;
        }
        Ok(())
    }

    fn point(&self, chunk: LiveChunk) -> Option<Point> {
        let payload = payload(&chunk, &self.version);
        if chunk.vector.is_none() && !chunk.awaits_vector {
            return None;
        }
        Some(Point {
            payload,
            vector: chunk.vector,
            lead: chunk.lead,
            text: chunk.text?,
        })
    }
}

/// The space of ids in `count` ranges of equal size, lower bound exclusive, upper bound
/// inclusive. Chunk ids are hashes, so each range holds about as many.
pub fn id_ranges(count: u32) -> Vec<(Uuid, Uuid)> {
    let bound = |i: u32| match i {
        0 => 0,
        _ if i == count => u128::MAX,
        _ => u128::MAX / u128::from(count) * u128::from(i),
    };
    (0..count)
        .map(|i| (Uuid::from_u128(bound(i)), Uuid::from_u128(bound(i + 1))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ranges_cover_every_id_once() {
        let ranges = id_ranges(4);
        assert_eq!(ranges[0].0, Uuid::nil());
        assert_eq!(ranges[3].1, Uuid::max());
        assert!(ranges.windows(2).all(|pair| pair[0].1 == pair[1].0));
        assert_eq!(id_ranges(1), [(Uuid::nil(), Uuid::max())]);
    }
}
