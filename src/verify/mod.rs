//! Compares the index with Postgres and Postgres with itself, and repairs drift from Postgres
//! alone. Cannot embed: this module does not depend on the embedding module.
//!
//! Both sides are read in the order of ids, a page at a time, while workers write. A
//! difference is read again, and counts as drift only under two conditions. The note is not
//! busy: leased, in the outbox, or expired and not yet deleted. And Postgres returned the same
//! chunk before and after the index was read.

mod compare;
mod points;
mod side;

use std::sync::{Arc, Mutex};
use std::time::Duration;

pub use points::points;
use serde::Serialize;
use uuid::Uuid;

use crate::lock::lock;
use crate::serving::{
    CollectionTarget, Notice, Progress, Serving, ServingError, alias_problem, check_alias,
    home_problem, reconcile_alias,
};
use crate::store::{CollectionRow, VerifyCursor};

/// Live notes that one statement checks.
const NOTES_PAGE: usize = 200;
/// Bytes of text in a page, about: Postgres holds the texts of a page in memory.
const PAGE_BYTES: usize = 8 << 20;

/// What a verify compares, and whether it repairs what it finds.
#[derive(Clone)]
pub struct Options {
    /// Compare the vectors too.
    pub deep: bool,
    /// The fraction to compare, above 0 and up to 1.
    pub sample: f64,
    /// Repair the drift found.
    pub repair: bool,
    /// Where to begin. It moves with the progress. A sample ignores it and begins at a random
    /// id.
    pub from: Arc<Mutex<VerifyCursor>>,
    /// How long to rest after a page, as a multiple of the time that the page took.
    pub rest: u32,
    /// Called for every difference found.
    pub notice: Notice,
    /// Counts the chunks compared.
    pub progress: Arc<Progress>,
}

impl Options {
    /// Compares everything but vectors, and repairs.
    pub fn repairing() -> Self {
        Self {
            deep: false,
            sample: 1.0,
            repair: true,
            from: Arc::default(),
            rest: 0,
            notice: Arc::new(|_| {}),
            progress: Arc::default(),
        }
    }

    async fn rest_after(&self, took: Duration) {
        if self.rest > 0 {
            tokio::time::sleep(took * self.rest).await;
        }
    }
}

/// What was compared and what was found.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Report {
    /// Live notes.
    pub notes: u64,
    /// Chunks of live notes.
    pub chunks: u64,
    /// Points in the index.
    pub points: u64,
    /// Chunks without a point.
    pub missing: u64,
    /// Points of another revision, payload, version or vector than their chunk.
    pub stale: u64,
    /// Points without a chunk.
    pub orphaned: u64,
    /// Live notes whose chunks, vectors or pooled vector do not follow from their text.
    pub inconsistent: u64,
    /// Points repaired, and inconsistent notes put into the outbox.
    pub repaired: u64,
    /// Points that the engine refuses. Their notes are in the outbox, and a worker records the
    /// reason.
    pub refused: u64,
}

impl Report {
    /// Missing, stale and orphaned points and inconsistent notes.
    pub fn drift(&self) -> u64 {
        self.missing + self.stale + self.orphaned + self.inconsistent
    }

    /// Differences found and not repaired.
    pub fn unrepaired(&self) -> u64 {
        self.drift() - self.repaired
    }

    fn add(&mut self, more: &Self) {
        self.notes += more.notes;
        self.chunks += more.chunks;
        self.points += more.points;
        self.missing += more.missing;
        self.stale += more.stale;
        self.orphaned += more.orphaned;
        self.inconsistent += more.inconsistent;
        self.repaired += more.repaired;
        self.refused += more.refused;
    }
}

/// Compares what the alias serves with the active version. With `repair`, an alias
/// that points elsewhere, or at nothing, is pointed at its collection.
pub async fn run(serving: &Serving, options: &Options) -> Result<Report, ServingError> {
    let (store, index, alias) = (&serving.store, &serving.index, &serving.alias);
    let Some(version) = store.active_version().await? else {
        return Err(ServingError::NothingIndexed);
    };
    if let Some(problem) = home_problem(serving).await? {
        return Err(ServingError::Mismatch(problem));
    }
    let registered = store.registered_collections().await?;
    let served = |c: &&CollectionRow| c.version == version.name && c.is_active();
    let collection = match registered.iter().find(served) {
        Some(collection) if index.collection(&collection.name).await?.is_some() => collection,
        _ => {
            return Err(ServingError::NotServed(format!(
                "the collection behind {alias:?} is gone: run `elf rebuild`, which brings it back \
                 from Postgres without an embedding call"
            )));
        }
    };
    check_alias(alias, std::slice::from_ref(collection))?;
    if options.repair {
        reconcile_alias(serving).await?;
    } else if let Some(problem) = alias_problem(serving).await? {
        return Err(ServingError::NotServed(format!(
            "the alias {alias:?} {problem}: run `elf verify --repair`"
        )));
    }
    let target = CollectionTarget::new(serving, &version.name, collection.name.clone());
    all(&target, version.dim, options).await
}

/// Compares a collection with its version, and the version with its notes.
pub async fn all(
    target: &CollectionTarget,
    dim: usize,
    options: &Options,
) -> Result<Report, ServingError> {
    let (mut report, of_notes) =
        tokio::try_join!(points(target, options), notes(target, dim, options))?;
    report.add(&of_notes);
    Ok(report)
}

/// Checks that chunks, vectors and the pooled vector of every live note match the note's text.
/// With `repair`, a note that fails the check is put into the outbox.
async fn notes(
    target: &CollectionTarget,
    dim: usize,
    options: &Options,
) -> Result<Report, ServingError> {
    let CollectionTarget { store, version, .. } = target;
    let mut report = Report::default();
    let is_sample = options.sample < 1.0;
    let mut after = match is_sample {
        true => Uuid::nil(),
        false => lock(&options.from).notes,
    };
    loop {
        let began = std::time::Instant::now();
        let (looked_at, problems) = store
            .note_problems(version, dim, after, NOTES_PAGE, PAGE_BYTES, options.sample)
            .await?;
        for problem in &problems {
            (options.notice)(format!("note {}: {}", problem.note_id, problem.problem));
        }
        report.inconsistent += problems.len() as u64;
        if options.repair && !problems.is_empty() {
            let mendable = problems.iter().filter(|problem| problem.is_mendable);
            let ids: Vec<Uuid> = mendable.map(|problem| problem.note_id).collect();
            store.requeue(version, &ids).await?;
            report.repaired += ids.len() as u64;
            for lost in problems.iter().filter(|problem| !problem.is_mendable) {
                let chunks = store.chunks_of(version, lost.note_id).await?;
                let notes = store.drop_unreadable(version, &chunks).await?;
                store.requeue(version, &notes).await?;
                report.repaired += notes.len() as u64;
            }
        }
        let Some((last, count)) = looked_at else {
            return Ok(report);
        };
        report.notes += count;
        after = last;
        if !is_sample {
            lock(&options.from).notes = last;
        }
        options.rest_after(began.elapsed()).await;
    }
}
