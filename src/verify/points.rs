//! Compares the index with Postgres, point by point.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Instant;

use tokio::task::JoinSet;
use uuid::Uuid;

use super::compare::{self, Drift};
use super::side::{PAGE, Side};
use super::{Options, Report};
use crate::index::{StoredPoint, UpsertMode};
use crate::lock::lock;
use crate::serving::{CollectionTarget, ServingError, id_ranges};
use crate::store::{Depth, LiveChunk};

/// Ranges that are compared concurrently.
const RANGES: u32 = 4;
/// Differences that are read again at once, with text and vector.
const REREAD_AT_ONCE: usize = 256;

/// Compares every point of a collection with its chunk and the other way round.
pub async fn points(target: &CollectionTarget, options: &Options) -> Result<Report, ServingError> {
    // A verify that rests between pages needs no concurrency, and one that resumes has a single
    // cursor.
    let begun = lock(&options.from).chunks;
    let ranges = match begun.is_nil() && options.rest == 0 {
        true => id_ranges(RANGES),
        false => vec![(begun, Uuid::max())],
    };
    let is_alone = ranges.len() == 1 && options.sample >= 1.0;
    let mut tasks = JoinSet::new();
    for range in ranges {
        let (after, upto) = window(range, options.sample, rand::random());
        let (target, options) = (target.clone(), options.clone());
        tasks.spawn(async move {
            let range = Comparison::new(&target, &options, after, upto);
            Comparison { is_alone, ..range }.run().await
        });
    }
    let mut report = Report::default();
    while let Some(done) = tasks.join_next().await {
        report.add(&done.expect("a range does not panic")?);
    }
    Ok(report)
}

/// The part of a range that a sample compares. One window is a fair sample, because ids are
/// hashes. `at` places the window, 0 to 1.
fn window((after, upto): (Uuid, Uuid), sample: f64, at: f64) -> (Uuid, Uuid) {
    if sample >= 1.0 {
        return (after, upto);
    }
    let (first, last) = (after.as_u128(), upto.as_u128());
    let width = (last - first) as f64;
    let start = first + (width * (1.0 - sample) * at) as u128;
    let end = start.saturating_add((width * sample) as u128);
    (Uuid::from_u128(start), Uuid::from_u128(end.min(last)))
}

/// The comparison of one range.
struct Comparison<'a> {
    target: &'a CollectionTarget,
    options: &'a Options,
    upto: Uuid,
    chunks: Side<LiveChunk>,
    points: Side<StoredPoint>,
    report: Report,
    /// Postgres issues no token up to this one any more.
    last_token: i64,
    /// Whether this is the only range, so that its position is the progress of the verify.
    is_alone: bool,
}

impl<'a> Comparison<'a> {
    fn new(target: &'a CollectionTarget, options: &'a Options, after: Uuid, upto: Uuid) -> Self {
        Self {
            target,
            options,
            upto,
            chunks: Side::new(after),
            points: Side::new(after),
            report: Report::default(),
            last_token: 0,
            is_alone: false,
        }
    }

    async fn run(mut self) -> Result<Report, ServingError> {
        loop {
            let began = Instant::now();
            self.read().await?;
            if self.chunks.page.is_empty() && self.points.page.is_empty() {
                return Ok(self.report);
            }
            // Both sides are read up to here. Comparing only that far bounds memory when one
            // side has a long gap.
            let bound = self.chunks.read_upto.min(self.points.read_upto);
            let chunks = self.chunks.take(|chunk| chunk.chunk_id, bound);
            let points = self.points.take(|point| point.chunk_id, bound);
            self.report.chunks += chunks.len() as u64;
            self.report.points += points.len() as u64;
            self.options.progress.add(chunks.len() as u64);
            if self.options.repair {
                self.raise_tokens(&points).await?;
            }
            let differing = compare::differing_ids(&chunks, &points, &self.target.version);
            let named = points
                .iter()
                .filter(|point| differing.binary_search(&point.chunk_id).is_ok())
                .filter_map(compare::note_id)
                .collect::<HashSet<Uuid>>();
            drop((chunks, points));
            // In parts, because differences are read again with text and vector.
            for part in differing.chunks(REREAD_AT_ONCE) {
                self.recheck_and_repair(part, &named).await?;
            }
            if self.is_alone {
                lock(&self.options.from).chunks = bound;
            }
            self.options.rest_after(began.elapsed()).await;
        }
    }

    /// Reads the next page of each side whose page is used up.
    async fn read(&mut self) -> Result<(), ServingError> {
        let CollectionTarget {
            store,
            index,
            version,
            collection,
            ..
        } = self.target;
        let depth = if self.options.deep {
            Depth::Vectors
        } else {
            Depth::Payload
        };
        let (chunks_after, points_after) = (self.chunks.read_upto, self.points.read_upto);
        let chunks = async {
            match self.chunks.is_spent() {
                true => Ok(Some(
                    store
                        .live_chunks(version, chunks_after, self.upto, PAGE, 0, depth)
                        .await?,
                )),
                false => Ok::<_, ServingError>(None),
            }
        };
        let points = async {
            match self.points.is_spent() {
                true => Ok(Some(
                    index
                        .scroll(collection, Some(points_after), PAGE, self.options.deep)
                        .await?,
                )),
                false => Ok::<_, ServingError>(None),
            }
        };
        let (chunks, points) = tokio::try_join!(chunks, points)?;
        if let Some(page) = chunks {
            self.chunks.fill(page, |chunk| chunk.chunk_id, self.upto);
        }
        if let Some(page) = points {
            self.points.fill(page, |point| point.chunk_id, self.upto);
        }
        Ok(())
    }

    /// Raises the tokens of Postgres above the revisions read. A point with a higher revision
    /// than Postgres has issued would win against every later write, also of busy notes.
    async fn raise_tokens(&mut self, points: &[StoredPoint]) -> Result<(), ServingError> {
        let newest = points.iter().filter_map(StoredPoint::revision).max();
        if let Some(newest) = newest.filter(|newest| *newest > self.last_token) {
            self.last_token = self.target.store.raise_tokens(newest).await?;
        }
        Ok(())
    }

    /// Reads the differences again, in the order Postgres, index, Postgres, and counts and
    /// repairs what still differs. `named` are the notes that the payloads of their points name.
    async fn recheck_and_repair(
        &mut self,
        differing: &[Uuid],
        named: &HashSet<Uuid>,
    ) -> Result<(), ServingError> {
        let mut named = named.clone();
        let before = self.snapshot(differing, &named).await?;
        named.extend(before.chunks.values().map(|chunk| chunk.note_id));
        let points: HashMap<Uuid, StoredPoint> = self
            .target
            .index
            .points(&self.target.collection, differing, true)
            .await?
            .into_iter()
            .map(|point| (point.chunk_id, point))
            .collect();
        let after = self.snapshot(differing, &named).await?;

        let mut found = Vec::new();
        for id in differing {
            let (chunk, point) = (after.chunks.get(id), points.get(id));
            let notes = [chunk.map(|c| c.note_id), point.and_then(compare::note_id)];
            // A note that only the second read knows may have been busy at the first: it may
            // have had a point that is deleted now.
            let is_busy = notes.iter().flatten().any(|note| {
                !named.contains(note) || before.busy.contains(note) || after.busy.contains(note)
            });
            if is_busy || chunk != before.chunks.get(id) {
                continue;
            }
            if let Some(drift) = compare::drift(chunk, point, &self.target.version) {
                found.push((*id, drift));
            }
        }
        self.count(&found, &after.chunks, &points);
        if self.options.repair {
            self.repair(&found, after.chunks, &points).await?;
        }
        Ok(())
    }

    /// Reads these chunks from Postgres, and finds which of their notes, and of the notes
    /// `named`, are busy: leased, in the outbox, or expired.
    async fn snapshot(
        &self,
        ids: &[Uuid],
        named: &HashSet<Uuid>,
    ) -> Result<Snapshot, ServingError> {
        let CollectionTarget { store, version, .. } = self.target;
        let chunks = store.live_chunks_by_id(version, ids).await?;
        let notes: HashSet<Uuid> = chunks
            .iter()
            .map(|c| c.note_id)
            .chain(named.iter().copied())
            .collect();
        let notes: Vec<Uuid> = notes.into_iter().collect();
        // Last: a note that changes after its chunks were read is busy.
        let busy = store.busy_notes(version, &notes).await?;
        let chunks = chunks.into_iter().map(|c| (c.chunk_id, c)).collect();
        Ok(Snapshot { chunks, busy })
    }

    fn count(
        &mut self,
        found: &[(Uuid, Drift)],
        chunks: &HashMap<Uuid, LiveChunk>,
        points: &HashMap<Uuid, StoredPoint>,
    ) {
        for (id, drift) in found {
            let (count, kind) = match drift {
                Drift::Missing => (&mut self.report.missing, "missing"),
                Drift::Stale => (&mut self.report.stale, "stale"),
                Drift::Orphaned => (&mut self.report.orphaned, "orphaned"),
            };
            *count += 1;
            let note = chunks
                .get(id)
                .map(|c| c.note_id)
                .or_else(|| compare::note_id(points.get(id)?));
            let note = note.map_or("an unknown note".to_owned(), |note| format!("note {note}"));
            (self.options.notice)(format!("{kind}: point {id} of {note}"));
        }
    }

    /// Writes points first and deletes afterwards, so that a kill leaves no gap.
    async fn repair(
        &mut self,
        found: &[(Uuid, Drift)],
        mut chunks: HashMap<Uuid, LiveChunk>,
        points: &HashMap<Uuid, StoredPoint>,
    ) -> Result<(), ServingError> {
        let revision_of = |id: &Uuid| points.get(id).and_then(StoredPoint::revision);
        let (mut renew, mut remove) = (Vec::new(), Vec::new());
        let mut forgotten: BTreeMap<i64, Vec<LiveChunk>> = BTreeMap::new();
        let mut foreign = (Vec::new(), Vec::new());
        for (id, drift) in found {
            match (drift, chunks.remove(id), revision_of(id)) {
                (Drift::Orphaned, _, revision) => remove.push((*id, revision)),
                (Drift::Stale, Some(chunk), None) => {
                    // A point without a revision was not written by ELF. No conditional upsert
                    // replaces it, so it is deleted and inserted.
                    foreign.0.push((*id, None));
                    foreign.1.push(chunk);
                }
                (Drift::Stale, Some(chunk), Some(revision)) if revision > chunk.revision => {
                    // Written under a token that this Postgres has lost, for example by a
                    // restore. The tokens were raised above it, so a point that a worker
                    // writes now is newer and stays.
                    forgotten.entry(revision).or_default().push(chunk);
                }
                (_, Some(chunk), _) => renew.push(chunk),
                (_, None, _) => {}
            }
        }
        self.report.repaired += found.len() as u64;
        self.write(renew, UpsertMode::NotNewer).await?;
        for (revision, chunks) in forgotten {
            self.write(chunks, UpsertMode::UpTo(revision)).await?;
        }
        self.target.remove(foreign.0.into_iter()).await?;
        self.write(foreign.1, UpsertMode::InsertOnly).await?;
        self.target.remove(remove.into_iter()).await?;
        Ok(())
    }

    /// Writes points. A point that the engine refuses stays as it is, and its note is requeued:
    /// a worker dead-letters it with the reason if it must.
    async fn write(
        &mut self,
        chunks: Vec<LiveChunk>,
        mode: UpsertMode,
    ) -> Result<(), ServingError> {
        let written = self.target.write(self.target.points(chunks), mode).await?;
        let CollectionTarget { store, version, .. } = self.target;
        for refused in &written.refused {
            (self.options.notice)(refused.to_string());
            store.requeue(version, &[refused.note_id]).await?;
        }
        let refused = written.refused.len() as u64;
        self.report.refused += refused;
        self.report.repaired -= refused;
        Ok(())
    }
}

/// The chunks and busy notes that Postgres returned in one read.
struct Snapshot {
    chunks: HashMap<Uuid, LiveChunk>,
    busy: HashSet<Uuid>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_a_window_of_its_width_within_the_range() {
        let range = id_ranges(4)[2];
        let width = |(a, b): (Uuid, Uuid)| (b.as_u128() - a.as_u128()) as f64;
        for at in [0.0, 0.3, 0.999_999] {
            let part = window(range, 0.01, at);
            assert!(part.0 >= range.0 && part.1 <= range.1, "{part:?}");
            assert!((width(part) / width(range) - 0.01).abs() < 1e-6);
        }
        assert_eq!(window(range, 1.0, 0.5), range);
    }
}
