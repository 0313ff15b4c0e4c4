//! A new collection from Postgres alone, beside workers that go on writing, and the
//! alias swapped to it. Knows no embedding.
//!
//! From the commit that registers the new collection every worker writes to it as
//! well as to the old one. What was committed before is read from Postgres and put
//! where no point is yet. So every chunk comes one way or the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::backfill::{Notice, Target, TargetError, id_ranges};
use crate::backoff;
use crate::index::{Bm25Options, CollectionSpec, Filter, IndexError, UpsertMode, VectorIndex};
use crate::job::{Job, JobError, Progress};
use crate::store::{Depth, LiveChunk, Range, Registered, Store, StoreError};
use crate::verify;

/// Ranges that are read and written side by side: while one waits for the engine,
/// another reads.
const RANGES: u32 = 4;
/// Chunks read and points written at once: one request.
const PAGE: usize = 512;
/// How long a store may be away before a rebuild ends. What is done is kept.
const PATIENCE: Duration = Duration::from_secs(600);
/// How often to ask whether the engine has built its graphs.
const ASK_EVERY: Duration = Duration::from_millis(500);
/// Searches that looked the alias up before it was swapped have ended by then.
const SEARCHES_END: Duration = Duration::from_secs(1);

/// What a rebuild works with.
#[derive(Clone)]
pub struct Site {
    /// The truth.
    pub store: Store,
    /// What is rebuilt from it.
    pub index: Arc<dyn VectorIndex>,
    /// The alias that is swapped.
    pub alias: String,
    /// How the new collection embeds texts for BM25.
    pub bm25: Bm25Options,
}

/// How a rebuild goes about it.
#[derive(Clone)]
pub struct Options {
    /// Where the alias points at nothing: swap it last all the same.
    pub swap_last: bool,
    /// Keep the old collection under its name.
    pub keep_old: bool,
    /// Drop what an unfinished rebuild has left instead of going on with it.
    pub restart: bool,
    /// Told of every chunk that has no vector.
    pub notice: Notice,
}

/// What a rebuild did.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The collection that the alias points at now.
    pub collection: String,
    /// Points that were read from Postgres for it.
    pub points: u64,
    /// How long it took, graphs and swap included.
    pub seconds: f64,
    /// Points that this run wrote, in each second that it wrote.
    pub points_per_sec: f64,
    /// Calls of the embedding provider: this module has none to call.
    pub embedding_calls: u64,
    /// Chunks that have no vector in Postgres: their notes are in the outbox.
    pub missing_vectors: u64,
}

/// Why a rebuild ended. What it has done is kept, and the next one goes on with it.
#[derive(Debug, thiserror::Error)]
pub enum RebuildError {
    /// Another job is running.
    #[error(transparent)]
    Job(#[from] JobError),
    /// A store failed.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// There is nothing to rebuild from.
    #[error("nothing is indexed yet: run `elf worker`, or `elf worker --once`")]
    NothingIndexed,
    /// The alias is not ELF's.
    #[error("{0}")]
    Foreign(String),
    /// The collection went, and with it the place where the rebuild stood.
    #[error("the collection {0:?} was dropped while it was filled; run `elf rebuild` again")]
    Forgotten(String),
    /// The engine cannot finish it.
    #[error(
        "the vector engine says that {0:?} is broken (red); look at its log, then run `elf rebuild --restart`"
    )]
    Broken(String),
    /// A store was away for too long.
    #[error("{reason} (for {} minutes); what is done is kept: run `elf rebuild` again to go on", PATIENCE.as_secs() / 60)]
    GaveUp {
        /// What it said last.
        reason: String,
    },
    /// It was told to.
    #[error("stopped at {done} of {total}; run `elf rebuild` again to go on")]
    Stopped {
        /// Chunks done.
        done: u64,
        /// Chunks in all.
        total: u64,
    },
}

impl From<StoreError> for RebuildError {
    fn from(error: StoreError) -> Self {
        TargetError::from(error).into()
    }
}

impl From<IndexError> for RebuildError {
    fn from(error: IndexError) -> Self {
        TargetError::from(error).into()
    }
}

/// Builds a new collection for the active version and swaps the alias to it, or goes
/// on with what an earlier run has left.
pub async fn run(
    site: &Site,
    options: &Options,
    progress: Arc<Progress>,
    stop: CancellationToken,
) -> Result<Report, RebuildError> {
    let job = Job::take(&site.store, "rebuild", &site.alias, progress).await?;
    let outcome = tokio::select! {
        outcome = job.run(rebuild(site, options, job.progress())) => outcome,
        () = stop.cancelled() => Err(RebuildError::Stopped {
            done: job.progress().done(),
            total: job.progress().total(),
        }),
    };
    job.end().await;
    outcome
}

/// Drops what unfinished rebuilds have left and old collections that were kept.
/// Returns their names.
pub async fn drop_leftovers(site: &Site) -> Result<Vec<String>, RebuildError> {
    let job = Job::take(&site.store, "drop", &site.alias, Arc::default()).await?;
    let outcome = job
        .run(async {
            let mut dropped = Vec::new();
            for collection in site.store.registered_collections().await? {
                // The version's only collection is being filled by a reindex.
                if !collection.is_active() {
                    drop_collection(site, &collection.name).await?;
                    dropped.push(collection.name);
                }
            }
            Ok(dropped)
        })
        .await;
    job.end().await;
    outcome
}

/// First it is not written any more, then it goes. It is forgotten last: killed between
/// any two of these, the next run finds it and does them again.
async fn drop_collection(site: &Site, name: &str) -> Result<(), RebuildError> {
    site.store.retire_collection(name).await?;
    site.index.drop_collection(name).await?;
    site.store.forget_collection(name).await?;
    Ok(())
}

async fn rebuild(
    site: &Site,
    options: &Options,
    progress: &Arc<Progress>,
) -> Result<Report, RebuildError> {
    let began = Instant::now();
    let version = site
        .store
        .active_version()
        .await?
        .ok_or(RebuildError::NothingIndexed)?;
    let spec = CollectionSpec {
        dim: version.dim,
        bm25: site.bm25.clone(),
        embedding_version: version.name.clone(),
    };
    let registered = site.store.registered_collections().await?;
    refuse_foreign(site, &registered).await?;
    let ours: Vec<&Registered> = registered
        .iter()
        .filter(|c| c.version == version.name)
        .collect();

    let unfinished = unfinished(site, options, &ours, &spec).await?;
    let resumed = unfinished.is_some();
    let collection = match unfinished {
        Some(name) => name,
        None => begin(site, &ours, &registered, &spec).await?,
    };
    lend_alias(site, &ours, &collection, options.swap_last).await?;

    let target = Target {
        store: site.store.clone(),
        index: site.index.clone(),
        version: version.name.clone(),
        collection: collection.clone(),
    };
    let ranges = site.store.rebuild_ranges(&collection).await?;
    let before: u64 = ranges.iter().map(|range| range.points).sum();
    progress.set(before, site.store.count_points(&version.name).await?);
    tracing::info!(
        collection,
        resumed,
        points = progress.total(),
        "rebuilding from Postgres"
    );
    let copying = Instant::now();
    copy(&target, ranges, options, progress).await?;
    let copied = site.store.rebuild_ranges(&collection).await?;
    let points: u64 = copied.iter().map(|range| range.points).sum();
    let points_per_sec = (points - before) as f64 / copying.elapsed().as_secs_f64();

    settle(&target, resumed).await?;
    site.index.bulk_load(&collection, false).await?;
    wait_until_green(site, &collection).await?;
    swap(site, options, &version.name, &collection).await?;
    Ok(Report {
        collection,
        points,
        seconds: began.elapsed().as_secs_f64(),
        points_per_sec,
        embedding_calls: 0,
        missing_vectors: copied.iter().map(|range| range.missing_vectors).sum(),
    })
}

/// An alias or a collection of that name that this database knows nothing of.
async fn refuse_foreign(site: &Site, registered: &[Registered]) -> Result<(), RebuildError> {
    let alias = &site.alias;
    let other = registered.iter().find(|c| c.alias != *alias);
    if let Some(other) = other {
        return Err(RebuildError::Foreign(format!(
            "the database is indexed under the alias {:?}, and storage.qdrant.collection is {alias:?}: \
             put the setting back",
            other.alias
        )));
    }
    let what = match site.index.resolve(alias).await? {
        Some(name) if registered.iter().any(|c| c.name == name) => return Ok(()),
        Some(name) => format!("an alias of the collection {name:?}"),
        None if site.index.collection(alias).await?.is_some() => "a collection".into(),
        None => return Ok(()),
    };
    Err(RebuildError::Foreign(format!(
        "{alias:?} is {what} in the vector engine, and this database knows nothing of it: \
         choose another storage.qdrant.collection, or delete it there if nobody uses it"
    )))
}

/// The collection that an earlier run has not finished, if it can be gone on with.
async fn unfinished(
    site: &Site,
    options: &Options,
    ours: &[&Registered],
    spec: &CollectionSpec,
) -> Result<Option<String>, RebuildError> {
    for collection in ours.iter().filter(|c| c.is_building()) {
        let name = &collection.name;
        let found = site.index.collection(name).await?;
        let reason = match found {
            _ if options.restart => "as asked",
            None => "the vector engine has lost it",
            Some(info) if info.spec.as_ref() != Some(spec) => "it was made with other settings",
            Some(_) => return Ok(Some(name.clone())),
        };
        tracing::warn!(collection = name, reason, "dropping an unfinished rebuild");
        drop_collection(site, name).await?;
    }
    Ok(None)
}

/// Makes a new collection and registers it.
async fn begin(
    site: &Site,
    ours: &[&Registered],
    registered: &[Registered],
    spec: &CollectionSpec,
) -> Result<String, RebuildError> {
    let name = free_name(site, registered, spec).await?;
    site.index.create_collection(&name, spec).await?;
    site.index.bulk_load(&name, true).await?;
    // Workers would wait for a collection that is not there any more.
    let mut lost = Vec::new();
    for collection in ours.iter().filter(|c| c.is_active()) {
        if site.index.collection(&collection.name).await?.is_none() {
            lost.push(collection.name.clone());
        }
    }
    let ranges: Vec<Range> = (0..)
        .zip(id_ranges(RANGES))
        .map(|(number, (done_upto, ends_at))| Range {
            number,
            done_upto,
            ends_at,
            points: 0,
            missing_vectors: 0,
        })
        .collect();
    let version = &spec.embedding_version;
    site.store
        .begin_rebuild(&name, &site.alias, version, &lost, &ranges)
        .await?;
    Ok(name)
}

/// `<alias>__<n>` with the lowest `n` that nobody has. An empty one that is just as
/// it has to be was left by a rebuild that died before it was registered.
pub(crate) async fn free_name(
    site: &Site,
    registered: &[Registered],
    spec: &CollectionSpec,
) -> Result<String, RebuildError> {
    for n in 1u32.. {
        let name = format!("{}__{n}", site.alias);
        if registered.iter().any(|c| c.name == name) {
            continue;
        }
        match site.index.collection(&name).await? {
            None => return Ok(name),
            Some(info) if info.points == 0 && info.spec.as_ref() == Some(spec) => return Ok(name),
            Some(_) => {}
        }
    }
    unreachable!("the numbers do not run out")
}

/// Where the alias points at nothing, searches are better off with what there is.
async fn lend_alias(
    site: &Site,
    ours: &[&Registered],
    collection: &str,
    swap_last: bool,
) -> Result<(), RebuildError> {
    if site.index.resolve(&site.alias).await?.is_some() {
        return Ok(());
    }
    for old in ours.iter().filter(|c| c.is_active()) {
        if site.index.collection(&old.name).await?.is_some() {
            return Ok(site.index.point_alias(&site.alias, &old.name).await?);
        }
    }
    if swap_last {
        return Ok(());
    }
    tracing::info!(
        alias = site.alias,
        collection,
        "the alias pointed at nothing; searches find points as they come"
    );
    Ok(site.index.point_alias(&site.alias, collection).await?)
}

/// Copies what is left of all ranges, side by side.
async fn copy(
    target: &Target,
    ranges: Vec<Range>,
    options: &Options,
    progress: &Arc<Progress>,
) -> Result<(), RebuildError> {
    let mut tasks = JoinSet::new();
    let outage = Arc::new(Outage::default());
    for range in ranges {
        let (target, notice, progress) = (target.clone(), options.notice.clone(), progress.clone());
        let outage = outage.clone();
        tasks.spawn(async move { copy_range(&target, range, &notice, &progress, &outage).await });
    }
    // Dropping the set, on an error or a stop, ends the others.
    while let Some(done) = tasks.join_next().await {
        done.expect("a range does not panic")?;
    }
    Ok(())
}

async fn copy_range(
    target: &Target,
    range: Range,
    notice: &Notice,
    progress: &Progress,
    outage: &Outage,
) -> Result<(), RebuildError> {
    let Target {
        store,
        version,
        collection,
        ..
    } = target;
    let mut after = range.done_upto;
    while after < range.ends_at {
        let ends_at = range.ends_at;
        let read = || store.live_chunks(version, after, ends_at, PAGE, Depth::Whole);
        let page = outage.sit_out(read).await?;
        let upto = match page.last() {
            Some(last) if page.len() == PAGE => last.chunk_id,
            _ => range.ends_at,
        };
        let missing = without_vector(&page, notice);
        let write = || async {
            if !missing.is_empty() {
                store.requeue(version, &missing).await?;
            }
            // Where no point is yet. A point that is there is a worker's, or our own of
            // a run that died before it could record how far it was.
            target.write(page.clone(), UpsertMode::InsertOnly).await
        };
        let written = outage.sit_out(write).await?;
        let (number, lacking) = (range.number, page.len() as u64 - written);
        let record = || store.advance_rebuild(collection, number, upto, written, lacking);
        if !outage.sit_out(record).await? {
            return Err(RebuildError::Forgotten(collection.clone()));
        }
        progress.add(written);
        after = upto;
    }
    Ok(())
}

/// The notes of chunks that have no vector: a worker will embed them.
fn without_vector(page: &[LiveChunk], notice: &Notice) -> Vec<Uuid> {
    let mut notes = Vec::new();
    for chunk in page.iter().filter(|chunk| !chunk.has_vector) {
        notice(format!(
            "no vector: chunk {} of note {}; the note is in the outbox",
            chunk.chunk_id, chunk.note_id
        ));
        notes.push(chunk.note_id);
    }
    notes.dedup();
    notes
}

/// A store that is away, for all who wait for it: it is said once.
#[derive(Default)]
struct Outage {
    waiting: AtomicU32,
}

impl Outage {
    /// Does it again and again as long as a store is away.
    async fn sit_out<T, E, F>(&self, work: impl Fn() -> F) -> Result<T, RebuildError>
    where
        E: Into<TargetError>,
        F: Future<Output = Result<T, E>>,
    {
        let mut away: Option<(Instant, u32)> = None;
        loop {
            let error = match work().await.map_err(Into::into) {
                Ok(done) => {
                    if away.is_some() && self.waiting.fetch_sub(1, Ordering::Relaxed) == 1 {
                        tracing::info!("it is back; the rebuild goes on");
                    }
                    return Ok(done);
                }
                Err(error) if error.may_pass() => error,
                Err(error) => return Err(error.into()),
            };
            let (since, tries) = away.get_or_insert_with(|| {
                if self.waiting.fetch_add(1, Ordering::Relaxed) == 0 {
                    tracing::warn!(%error, "the rebuild waits, nothing is lost");
                }
                (Instant::now(), 0)
            });
            if since.elapsed() > PATIENCE {
                return Err(RebuildError::GaveUp {
                    reason: error.to_string(),
                });
            }
            *tries += 1;
            let pause = backoff::delay(
                *tries,
                Duration::from_millis(200),
                Duration::from_secs(5),
                rand::random(),
            );
            tokio::time::sleep(pause).await;
        }
    }
}

/// The same for one who works alone.
async fn patiently<T, E, F>(work: impl Fn() -> F) -> Result<T, RebuildError>
where
    E: Into<TargetError>,
    F: Future<Output = Result<T, E>>,
{
    Outage::default().sit_out(work).await
}

/// Makes sure that the collection has what it has to have. Equal counts say so. When
/// they differ, somebody is writing, and when this run went on where another one
/// died, that one may have left a point whose chunk has gone since: then every point
/// is looked at.
async fn settle(target: &Target, resumed: bool) -> Result<(), RebuildError> {
    let expected = target.store.count_points(&target.version).await?;
    let found = target
        .index
        .count(&target.collection, &Filter::default())
        .await?;
    if !resumed && expected == found {
        return Ok(());
    }
    tracing::info!(expected, found, resumed, "looking at every point");
    let options = verify::Options::repairing();
    let report = patiently(|| verify::points(target, &options)).await?;
    if report.repaired > 0 {
        tracing::info!(repaired = report.repaired, "mended points");
    }
    Ok(())
}

async fn wait_until_green(site: &Site, collection: &str) -> Result<(), RebuildError> {
    let mut said = false;
    loop {
        let info = patiently(|| site.index.collection(collection)).await?;
        match info.map(|info| info.status) {
            None => return Err(RebuildError::Forgotten(collection.into())),
            Some(status) if status == "green" => return Ok(()),
            Some(status) if status == "red" => return Err(RebuildError::Broken(collection.into())),
            Some(status) if !said => {
                tracing::info!(collection, status, "the vector engine builds its graphs");
                said = true;
            }
            Some(_) => {}
        }
        tokio::time::sleep(ASK_EVERY).await;
    }
}

/// The alias, in one request; then the old collection is not written any more; then
/// it goes. Killed between any two of these, the next run does them again.
async fn swap(
    site: &Site,
    options: &Options,
    version: &str,
    collection: &str,
) -> Result<(), RebuildError> {
    patiently(|| site.index.point_alias(&site.alias, collection)).await?;
    patiently(|| site.store.finish_rebuild(collection, version)).await?;
    if options.keep_old {
        return Ok(());
    }
    tokio::time::sleep(SEARCHES_END).await;
    for old in site.store.registered_collections().await? {
        if old.is_retired() && old.version == version {
            drop_collection(site, &old.name).await?;
        }
    }
    Ok(())
}
