//! A new collection from Postgres alone, beside workers that go on writing, and the
//! alias swapped to it. Knows no embedding.
//!
//! From the commit that registers the new collection every worker writes to it as
//! well as to the old one. What was committed before is read from Postgres and put
//! where no point is yet. So every chunk comes one way or the other.

mod begin;
mod copy;
mod patience;

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio_util::sync::CancellationToken;

pub(crate) use begin::free_name;

use self::begin::{begin, lend_alias, refuse_foreign, unfinished};
use self::copy::copy;
use self::patience::{PATIENCE, patiently};
use crate::index::{CollectionSpec, CollectionStatus, Filter, IndexError};
use crate::registry::{
    AliasError, CollectionTarget, IndexContext, Job, JobError, Notice, Progress, StoresError,
    reconcile_alias,
};
use crate::store::{CollectionRow, StoreError};
use crate::verify;

/// How often to ask whether the engine has built its graphs.
const ASK_EVERY: Duration = Duration::from_millis(500);
/// Searches that looked the alias up before it was swapped have ended by then.
const SEARCHES_END: Duration = Duration::from_secs(1);

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
    /// Points that the engine did not accept in this run: their notes are in the outbox.
    pub refused_points: u64,
}

/// Why a rebuild ended. What it has done is kept, and the next one goes on with it.
#[derive(Debug, thiserror::Error)]
pub enum RebuildError {
    /// Another job is running.
    #[error(transparent)]
    Job(#[from] JobError),
    /// A store failed.
    #[error(transparent)]
    Stores(#[from] StoresError),
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
        StoresError::from(error).into()
    }
}

impl From<IndexError> for RebuildError {
    fn from(error: IndexError) -> Self {
        StoresError::from(error).into()
    }
}

/// Builds a new collection for the active version and swaps the alias to it, or goes
/// on with what an earlier run has left.
pub async fn run(
    context: &IndexContext,
    options: &Options,
    progress: Arc<Progress>,
    stop: CancellationToken,
) -> Result<Report, RebuildError> {
    let job = Job::take(&context.store, "rebuild", &context.alias, progress).await?;
    let outcome = tokio::select! {
        outcome = job.run(rebuild(context, options, &job)) => outcome,
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
pub async fn drop_leftovers(context: &IndexContext) -> Result<Vec<String>, RebuildError> {
    let job = Job::take(&context.store, "drop", &context.alias, Arc::default()).await?;
    let outcome = job
        .run(async {
            let mut dropped = Vec::new();
            for collection in context.store.registered_collections().await? {
                // The version's only collection is being filled by a reindex.
                if !collection.is_active() {
                    drop_collection(context, &collection.name).await?;
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
async fn drop_collection(context: &IndexContext, name: &str) -> Result<(), RebuildError> {
    context.store.retire_collection(name).await?;
    context.index.drop_collection(name).await?;
    context.store.forget_collection(name).await?;
    Ok(())
}

async fn rebuild(
    context: &IndexContext,
    options: &Options,
    job: &Job,
) -> Result<Report, RebuildError> {
    let progress = job.progress();
    let began = Instant::now();
    let version = context
        .store
        .active_version()
        .await?
        .ok_or(RebuildError::NothingIndexed)?;
    let spec = CollectionSpec {
        dim: version.dim,
        bm25: context.bm25.clone(),
        embedding_version: version.name.clone(),
    };
    let registered = context.store.registered_collections().await?;
    refuse_foreign(context, &registered, &version.name).await?;
    let ours: Vec<&CollectionRow> = registered
        .iter()
        .filter(|c| c.version == version.name)
        .collect();

    let unfinished = unfinished(context, options, &ours, &spec).await?;
    let resumed = unfinished.is_some();
    let collection = match unfinished {
        Some(name) => name,
        None => begin(context, &ours, &spec).await?,
    };
    lend_alias(context, &ours, &collection, options.swap_last).await?;

    let target = CollectionTarget {
        store: context.store.clone(),
        index: context.index.clone(),
        version: version.name.clone(),
        collection: collection.clone(),
        writes: job.writes().clone(),
    };
    let ranges = context.store.rebuild_ranges(&collection).await?;
    let before: u64 = ranges.iter().map(|range| range.points).sum();
    progress.set(before, context.store.count_points(&version.name).await?);
    tracing::info!(
        collection,
        resumed,
        points = progress.total(),
        "rebuilding from Postgres"
    );
    let copying = Instant::now();
    let refused_points = copy(&target, ranges, options, progress).await?;
    let copied = context.store.rebuild_ranges(&collection).await?;
    let points: u64 = copied.iter().map(|range| range.points).sum();
    let points_per_sec = (points - before) as f64 / copying.elapsed().as_secs_f64();

    final_check(&target, resumed).await?;
    context.index.bulk_load(&collection, false).await?;
    wait_until_green(context, &collection).await?;
    swap(context, options, &version.name, &collection).await?;
    Ok(Report {
        collection,
        points,
        seconds: began.elapsed().as_secs_f64(),
        points_per_sec,
        embedding_calls: 0,
        missing_vectors: copied.iter().map(|range| range.missing_vectors).sum(),
        refused_points,
    })
}

/// Makes sure that the collection has what it has to have. Equal counts say so. When
/// they differ, somebody is writing, and when this run went on where another one
/// died, that one may have left a point whose chunk has gone since: then every point
/// is looked at.
async fn final_check(target: &CollectionTarget, resumed: bool) -> Result<(), RebuildError> {
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

async fn reconcile(context: &IndexContext) -> Result<Result<(), RebuildError>, StoresError> {
    match reconcile_alias(context).await {
        Ok(()) => Ok(Ok(())),
        Err(AliasError::Store(error)) => Err(error.into()),
        Err(AliasError::Index(error)) => Err(error.into()),
        Err(foreign @ AliasError::Foreign { .. }) => {
            Ok(Err(RebuildError::Foreign(foreign.to_string())))
        }
    }
}

async fn wait_until_green(context: &IndexContext, collection: &str) -> Result<(), RebuildError> {
    let mut said = false;
    loop {
        let info = patiently(|| context.index.collection(collection)).await?;
        match info.map(|info| info.status) {
            None => return Err(RebuildError::Forgotten(collection.into())),
            Some(CollectionStatus::Green) => return Ok(()),
            Some(CollectionStatus::Red) => return Err(RebuildError::Broken(collection.into())),
            Some(status) if !said => {
                tracing::info!(collection, %status, "the vector engine builds its graphs");
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
    context: &IndexContext,
    options: &Options,
    version: &str,
    collection: &str,
) -> Result<(), RebuildError> {
    patiently(|| context.index.point_alias(&context.alias, collection)).await?;
    if !patiently(|| context.store.finish_rebuild(collection, version)).await? {
        return Err(RebuildError::Forgotten(collection.into()));
    }
    // Looks again after the commit: another process may have pointed the alias back at the
    // collection that was registered until then.
    patiently(|| reconcile(context)).await??;
    if options.keep_old {
        return Ok(());
    }
    tokio::time::sleep(SEARCHES_END).await;
    for old in context.store.registered_collections().await? {
        if old.is_retired() && old.version == version {
            drop_collection(context, &old.name).await?;
        }
    }
    Ok(())
}
