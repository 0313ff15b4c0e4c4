//! Fills a new collection from Postgres while workers keep writing, and swaps the alias to
//! it. Cannot embed: this module does not depend on the embedding module.
//!
//! From the commit that registers the new collection, every worker writes to it and to the
//! old one. The rebuild copies what was committed before from Postgres, and inserts only where
//! no point exists. So each chunk reaches the new collection in one of the two ways.

mod begin;
mod copy;
mod outage;

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio_util::sync::CancellationToken;

use self::begin::{begin, check_alias_is_ours, point_unset_alias, unfinished};
use self::copy::{Copied, copy};
use self::outage::{OUTAGE_LIMIT, retry_unavailable};
use crate::error_class::ErrorClass;
use crate::index::{CollectionStatus, Filter};
use crate::serving::{
    CollectionTarget, Job, Notice, Progress, Serving, ServingError, index_fields, move_home,
    reconcile_alias, spec,
};
use crate::store::{CollectionRow, StoreError};
use crate::verify;

/// How often to ask whether the engine has built its HNSW graphs.
const ASK_EVERY: Duration = Duration::from_millis(500);
/// Searches that looked the alias up before it was swapped have ended by then.
const SEARCH_DRAIN: Duration = Duration::from_secs(1);

/// The options of a rebuild.
#[derive(Clone)]
pub struct Options {
    /// Swap the alias last, even if it points at nothing during the rebuild.
    pub swap_last: bool,
    /// Take the alias over from a collection that this database does not list.
    pub take_alias: bool,
    /// Keep the old collection under its name.
    pub keep_old: bool,
    /// Drop the collection of an unfinished rebuild instead of resuming it.
    pub restart: bool,
    /// Called for every chunk without a vector and every point that the engine refuses.
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
    /// Points that this run wrote, for each second of copying.
    pub points_per_sec: f64,
    /// Calls to the embedding provider: always 0, because this module has no provider.
    pub embedding_calls: u64,
    /// Chunks that have no vector in Postgres: their notes are in the outbox.
    pub missing_vectors: u64,
    /// Points that the engine refused in this run: their notes are in the outbox.
    pub refused_points: u64,
}

/// Why a rebuild failed. The points copied so far are kept, and the next run resumes there.
#[derive(Debug, thiserror::Error)]
pub enum RebuildError {
    /// Postgres or the vector engine failed, another job is running, or the alias is not ELF's.
    #[error(transparent)]
    Serving(ServingError),
    /// The new collection was dropped, and with it the progress of the rebuild.
    #[error("the collection {0:?} was dropped while it was filled; run `elf rebuild` again")]
    Forgotten(String),
    /// The engine reports the new collection as broken.
    #[error(
        "the vector engine says that {0:?} is broken (red); look at its log, then run `elf rebuild --restart`"
    )]
    Broken(String),
    /// Postgres or the vector engine was unavailable for too long.
    #[error("{reason} (for {} minutes); what is done is kept: run `elf rebuild` again to resume", OUTAGE_LIMIT.as_secs() / 60)]
    Unavailable {
        /// Its last error.
        reason: String,
    },
    /// A signal stopped it.
    #[error("stopped at {done} of {total} points; run `elf rebuild` again to resume")]
    Stopped {
        /// Points copied.
        done: u64,
        /// Points to copy in total.
        total: u64,
    },
}

impl<E: Into<ServingError>> From<E> for RebuildError {
    fn from(error: E) -> Self {
        Self::Serving(error.into())
    }
}

impl RebuildError {
    fn has_lost_job(&self) -> bool {
        matches!(
            self,
            Self::Serving(ServingError::Store(StoreError::JobLost))
        )
    }

    /// What has to change before the same work can succeed.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Serving(error) => error.class(),
            Self::Unavailable { .. } => ErrorClass::Storage,
            Self::Broken(_) | Self::Forgotten(_) | Self::Stopped { .. } => ErrorClass::Precondition,
        }
    }
}

/// Builds a new collection for the active version and swaps the alias to it. Resumes an
/// unfinished rebuild if there is one.
pub async fn run(
    serving: &Serving,
    options: &Options,
    progress: Arc<Progress>,
    stop: CancellationToken,
) -> Result<Report, RebuildError> {
    let stopped_at = |progress: &Progress| RebuildError::Stopped {
        done: progress.done(),
        total: progress.total(),
    };
    // It may wait for the lease of a job that died.
    let taking = Job::take(&serving.store, "rebuild", &serving.alias, progress.clone());
    let Some(job) = stop.run_until_cancelled(taking).await else {
        return Err(stopped_at(&progress));
    };
    let job = job?;
    let served = CancellationToken::new();
    // When the new collection is served, only the drop of the old one is left. A stop signal
    // does not interrupt it.
    let stopped = async {
        stop.cancelled().await;
        if served.is_cancelled() {
            std::future::pending().await
        }
    };
    let outcome = tokio::select! {
        outcome = job.run(rebuild(serving, options, &job, &served)) => outcome,
        () = stopped => Err(stopped_at(&job.progress)),
    };
    if outcome.as_ref().is_err_and(RebuildError::has_lost_job)
        && let Err(error) = reconcile_alias(serving).await
    {
        // A worker repairs it too.
        tracing::debug!(%error, "could not reconcile the alias");
    }
    job.end().await;
    outcome
}

/// Drops the collections of unfinished rebuilds and the old collections that were kept.
/// Returns their names.
pub async fn drop_leftovers(serving: &Serving) -> Result<Vec<String>, RebuildError> {
    let job = Job::take(&serving.store, "drop", &serving.alias, Arc::default()).await?;
    let outcome = job
        .run(async {
            let mut dropped = Vec::new();
            for collection in serving.store.registered_collections().await? {
                // The version's only collection is being filled by a reindex.
                if !collection.is_active()
                    && drop_collection(serving, &job, &collection.name).await?
                {
                    dropped.push(collection.name);
                }
            }
            Ok(dropped)
        })
        .await;
    job.end().await;
    outcome
}

/// Workers stop writing first, then the engine drops the collection, then Postgres forgets
/// it. Killed between two of these steps, the next run finds the row and repeats them. Leaves a
/// collection that became active since the caller read its row, and returns whether it was dropped.
async fn drop_collection(serving: &Serving, job: &Job, name: &str) -> Result<bool, RebuildError> {
    let (store, index, alias) = (&serving.store, &serving.index, &serving.alias);
    if !store.retire_collection(&job.lease, name).await? {
        return Ok(false);
    }
    // A rebuild that died after it moved the alias: there may be another collection to search.
    if index.resolve(alias).await?.as_deref() == Some(name) {
        reconcile_alias(serving).await?;
    }
    index.drop_collection(name).await?;
    store.forget_retired(name).await?;
    Ok(true)
}

async fn rebuild(
    serving: &Serving,
    options: &Options,
    job: &Job,
    served: &CancellationToken,
) -> Result<Report, RebuildError> {
    let progress = &job.progress;
    let began = Instant::now();
    let version = serving
        .store
        .active_version()
        .await?
        .ok_or(ServingError::NothingIndexed)?;
    let spec = spec(serving, &version);
    let registered = serving.store.registered_collections().await?;
    check_alias_is_ours(serving, options, &registered, &version.name).await?;
    move_home(serving, options.take_alias).await?;
    let ours: Vec<&CollectionRow> = registered
        .iter()
        .filter(|c| c.version == version.name)
        .collect();

    let unfinished = unfinished(serving, job, options, &ours, &spec).await?;
    let resumed = unfinished.is_some();
    let collection = match unfinished {
        Some(name) => name,
        None => begin(serving, job, &ours, &spec).await?,
    };
    index_fields(serving, &collection).await?;
    point_unset_alias(serving, job, &ours, &collection, options.swap_last).await?;

    let target = CollectionTarget {
        writes: job.writes.clone(),
        ..CollectionTarget::new(serving, &version.name, collection.clone())
    };
    let ranges = serving.store.rebuild_ranges(&collection).await?;
    let before: u64 = ranges.iter().map(|range| range.points).sum();
    progress.set(before, serving.store.count_points(&version.name).await?);
    tracing::info!(
        collection,
        resumed,
        points = progress.total(),
        "rebuilding from Postgres"
    );
    let copied = load(&target, job, options, resumed).await?;
    let ranges = serving.store.rebuild_ranges(&collection).await?;
    let points: u64 = ranges.iter().map(|range| range.points).sum();
    swap(serving, job, options, &version.name, &collection, served).await?;
    Ok(Report {
        collection,
        points,
        seconds: began.elapsed().as_secs_f64(),
        points_per_sec: (points - before) as f64 / copied.seconds,
        embedding_calls: 0,
        missing_vectors: ranges.iter().map(|range| range.missing_vectors).sum(),
        refused_points: copied.refused,
    })
}

/// Copies what is left in one load or several: the engine sets a limit, and builds the graphs of
/// one load before the next.
async fn load(
    target: &CollectionTarget,
    job: &Job,
    options: &Options,
    resumed: bool,
) -> Result<Copied, RebuildError> {
    let CollectionTarget {
        store,
        index,
        collection,
        ..
    } = target;
    if resumed {
        // Or its segments would add up with those of the next load.
        build_graphs(target, job).await?;
    }
    let mut copied = Copied::default();
    while !copied.complete {
        // Alone: in a collection that another process serves by now, it would end the graphs.
        let most = retry_unavailable(|| job.alone(index.begin_load(collection))).await?;
        let mut ranges = retry_unavailable(|| store.rebuild_ranges(collection)).await?;
        ranges.retain(|range| range.cursor < range.upper_bound);
        copied = copied.and(copy(target, ranges, most, options, &job.progress).await?);
        if copied.complete {
            final_check(target, resumed).await?;
        }
        build_graphs(target, job).await?;
    }
    Ok(copied)
}

async fn build_graphs(target: &CollectionTarget, job: &Job) -> Result<(), RebuildError> {
    retry_unavailable(|| job.alone(target.index.end_load(&target.collection))).await?;
    wait_until_green(target).await
}

/// Checks that the collection holds every point of the version. Equal counts are enough for a
/// run that did all the copying. If counts differ, workers may be writing. If this run resumed
/// another, that one may have left a point whose chunk is deleted since. In both cases every
/// point is verified and repaired.
async fn final_check(target: &CollectionTarget, resumed: bool) -> Result<(), RebuildError> {
    let expected = target.store.count_points(&target.version).await?;
    let found = target
        .index
        .count(&target.collection, &Filter::default())
        .await?;
    if !resumed && expected == found {
        return Ok(());
    }
    tracing::info!(expected, found, resumed, "verifying every point");
    let options = verify::Options::repairing();
    let report = retry_unavailable(|| verify::points(target, &options)).await?;
    if report.repaired > 0 {
        tracing::info!(repaired = report.repaired, "points repaired");
    }
    Ok(())
}

/// Waits until the engine says `green` twice: Qdrant looks for segments that it optimises, then for
/// those that wait for it, and one that begins in between is in neither.
async fn wait_until_green(target: &CollectionTarget) -> Result<(), RebuildError> {
    let CollectionTarget {
        index, collection, ..
    } = target;
    let (mut said, mut green) = (false, false);
    loop {
        let info = retry_unavailable(|| index.collection(collection)).await?;
        let was_green = std::mem::take(&mut green);
        match info.map(|info| info.status) {
            None => return Err(RebuildError::Forgotten(collection.into())),
            Some(CollectionStatus::Green) if was_green => return Ok(()),
            Some(CollectionStatus::Green) => green = true,
            Some(CollectionStatus::Red) => return Err(RebuildError::Broken(collection.into())),
            // It was restarted, and waits for a write or for this.
            Some(CollectionStatus::Grey) => {
                retry_unavailable(|| index.end_load(collection)).await?;
            }
            Some(status) if !said => {
                tracing::info!(
                    collection,
                    %status,
                    "waiting for the vector engine to build its graphs"
                );
                said = true;
            }
            Some(_) => {}
        }
        tokio::time::sleep(ASK_EVERY).await;
    }
}

/// Points the alias at the new collection, retires the old one so that workers stop writing
/// to it, and drops it. Killed between two of these steps, the next run repeats them.
async fn swap(
    serving: &Serving,
    job: &Job,
    options: &Options,
    version: &str,
    collection: &str,
    served: &CancellationToken,
) -> Result<(), RebuildError> {
    let (store, index, alias) = (&serving.store, &serving.index, &serving.alias);
    retry_unavailable(|| job.alone(index.point_alias(alias, collection))).await?;
    if !retry_unavailable(|| store.finish_rebuild(&job.lease, collection, version)).await? {
        return Err(RebuildError::Forgotten(collection.into()));
    }
    served.cancel();
    // Again after the commit: until then another process may have pointed the alias back at
    // the old collection.
    retry_unavailable(|| reconcile_alias(serving)).await?;
    if options.keep_old {
        return Ok(());
    }
    tokio::time::sleep(SEARCH_DRAIN).await;
    for old in store.registered_collections().await? {
        if old.is_retired() && old.version == version {
            drop_collection(serving, job, &old.name).await?;
        }
    }
    Ok(())
}
