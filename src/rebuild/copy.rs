//! Copies what was committed before the collection was registered from Postgres to the engine.

use std::sync::Arc;
use std::time::Instant;

use tokio::task::JoinSet;
use uuid::Uuid;

use super::outage::Outage;
use super::{Options, RebuildError};
use crate::index::UpsertMode;
use crate::serving::{CollectionTarget, Notice, Progress};
use crate::store::{Depth, LiveChunk, Range};

/// Chunks read and points written at once: one request.
const PAGE: usize = 512;

/// Bytes of text in a page, about. A chunk can be megabytes: a very long word is one token.
const PAGE_BYTES: usize = 8 << 20;

/// What a run has copied.
#[derive(Default)]
pub(super) struct Copied {
    /// Nothing is left to copy.
    pub complete: bool,
    /// Points that the engine refused.
    pub refused: u64,
    /// How long it took.
    pub seconds: f64,
}

impl Copied {
    /// Both, `later` being what was copied after this.
    pub(super) fn and(self, later: Self) -> Self {
        Self {
            complete: later.complete,
            refused: self.refused + later.refused,
            seconds: self.seconds + later.seconds,
        }
    }
}

/// Copies up to about `most` points of the rest of all ranges, concurrently.
pub(super) async fn copy(
    target: &CollectionTarget,
    ranges: Vec<Range>,
    most: u64,
    options: &Options,
    progress: &Arc<Progress>,
) -> Result<Copied, RebuildError> {
    let began = Instant::now();
    let most = (most / ranges.len().max(1) as u64).max(1);
    let mut copied = Copied {
        complete: true,
        ..Copied::default()
    };
    let mut tasks = JoinSet::new();
    let outage = Arc::new(Outage::default());
    for range in ranges {
        let (target, notice, progress) = (target.clone(), options.notice.clone(), progress.clone());
        let outage = outage.clone();
        tasks.spawn(
            async move { copy_range(&target, range, most, &notice, &progress, &outage).await },
        );
    }
    // On an error or a stop the set is dropped, which aborts the other ranges.
    while let Some(done) = tasks.join_next().await {
        let part = done.expect("a range does not panic")?;
        copied.complete &= part.complete;
        copied.refused += part.refused;
    }
    copied.seconds = began.elapsed().as_secs_f64();
    Ok(copied)
}

async fn copy_range(
    target: &CollectionTarget,
    range: Range,
    most: u64,
    notice: &Notice,
    progress: &Progress,
    outage: &Outage,
) -> Result<Copied, RebuildError> {
    let CollectionTarget {
        store,
        version,
        collection,
        ..
    } = target;
    let (mut after, mut points, mut refused) = (range.cursor, 0, 0);
    while after < range.upper_bound && points < most {
        let upper_bound = range.upper_bound;
        let read =
            || store.live_chunks(version, after, upper_bound, PAGE, PAGE_BYTES, Depth::Whole);
        let page = outage.retry(read).await?;
        let upto = page.last().map_or(range.upper_bound, |last| last.chunk_id);
        let (size, lacking) = (page.len() as u64, missing_vectors(&page));
        let missing = without_vector(&page, notice);
        let lost = page.iter().filter(|chunk| chunk.unreadable.is_some());
        let lost: Vec<Uuid> = lost.map(|chunk| chunk.chunk_id).collect();
        let page = target.points(page);
        let write = || async {
            if !lost.is_empty() {
                store.drop_unreadable(version, &lost).await?;
            }
            if !missing.is_empty() {
                store.requeue(version, &missing).await?;
            }
            // Insert only: an existing point is a worker's, or comes from a run that died before
            // it recorded its progress.
            target.write(page.clone(), UpsertMode::InsertOnly).await
        };
        let written = outage.retry(write).await?;
        // A worker indexes the note again, and dead-letters it with the reason if it must.
        let notes: Vec<Uuid> = written.refused.iter().map(|r| r.note_id).collect();
        if !notes.is_empty() {
            written.refused.iter().for_each(|r| notice(r.to_string()));
            outage.retry(|| store.requeue(version, &notes)).await?;
            refused += notes.len() as u64;
        }
        let number = range.number;
        let record = || store.advance_rebuild(collection, number, upto, written.points, lacking);
        if !outage.retry(record).await? {
            return Err(RebuildError::Forgotten(collection.clone()));
        }
        progress.add(written.points);
        points += size;
        after = upto;
    }
    Ok(Copied {
        complete: after >= range.upper_bound,
        refused,
        ..Copied::default()
    })
}

fn missing_vectors(page: &[LiveChunk]) -> u64 {
    page.iter().filter(|chunk| lacks_point(chunk)).count() as u64
}

fn lacks_point(chunk: &LiveChunk) -> bool {
    !chunk.has_point() || chunk.unreadable.is_some()
}

/// The notes of chunks that lost their vector, or that Postgres cannot read: a worker will embed them.
fn without_vector(page: &[LiveChunk], notice: &Notice) -> Vec<Uuid> {
    let mut notes = Vec::new();
    for chunk in page.iter().filter(|chunk| lacks_point(chunk)) {
        let why = match &chunk.unreadable {
            Some(reason) => format!("unreadable ({reason})"),
            None => "no vector".into(),
        };
        notice(format!(
            "{why}: chunk {} of note {}; the note is in the outbox",
            chunk.chunk_id, chunk.note_id
        ));
        notes.push(chunk.note_id);
    }
    notes.dedup();
    notes
}
