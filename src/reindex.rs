//! Another embedding version beside the one that is served: built by workers of its
//! own while the old one is kept in step, compared with Postgres, swapped to in one
//! step, and back again as long as the old one is kept.
//!
//! Postgres says what is served, and changes first; the alias follows. Killed between
//! the two, whoever looks next, a worker or the same command, finishes it.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::alias::{self, AliasError};
use crate::backfill::{Target, TargetError};
use crate::chunk::Chunker;
use crate::embed::EmbedError;
use crate::index::IndexError;
use crate::job::{Job, JobError, Progress};
use crate::note::TextHash;
use crate::rebuild::{RebuildError, Site, free_name};
use crate::store::{Known, Registered, Store, StoreError, Version, VersionState};
use crate::verify;
use crate::version::{Change, changes};
use crate::worker::{self, Piece, SetupError, Tools, Worker};

/// How often to look whether a version has caught up.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Notes, and bytes of their texts, that an estimate holds in memory at once.
const PAGE_NOTES: usize = 1_000;
const PAGE_BYTES: usize = 4 << 20;

/// What building a version came to.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The version that the configuration asks for.
    pub version: String,
    /// What is done with it now.
    pub state: VersionState,
    /// What this run did.
    #[serde(flatten)]
    pub work: worker::Report,
    /// Dead letters that the version has.
    pub dead_letters: u64,
    /// What was compared before the swap; null when nothing was swapped.
    pub verified: Option<verify::Report>,
}

/// What building a version would take.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Estimate {
    /// The version that the configuration asks for.
    pub version: String,
    /// Live notes.
    pub notes: u64,
    /// Chunks that they would be cut into.
    pub chunks: u64,
    /// Those of them whose text has a vector already.
    pub known: u64,
    /// Texts that would be embedded, at most: the same text far apart is counted twice.
    pub to_embed: u64,
    /// Tokens of those, as they would be sent.
    pub tokens: u64,
}

/// What a rollback did.
#[derive(Debug, Clone, Serialize)]
pub struct RolledBack {
    /// The version that is served again.
    pub version: String,
    /// The one that was served before; null when only an unfinished rollback was ended.
    pub retired: Option<String>,
    /// Notes that are due for it.
    pub due: u64,
    /// The settings of the version that is served again, where they are others.
    pub settings: Vec<Change>,
}

/// A version that was dropped.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Dropped {
    /// Its name.
    pub version: String,
    /// Its collections in the vector engine.
    pub collections: Vec<String>,
    /// Its chunks in Postgres; each had a vector at most.
    pub chunks: u64,
}

/// Why a reindex ended.
#[derive(Debug, thiserror::Error)]
pub enum ReindexError {
    /// Another job is running.
    #[error(transparent)]
    Job(#[from] JobError),
    /// Configuration, database and index do not belong together.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// The provider refuses the configuration.
    #[error("failed to embed")]
    Embed(#[source] EmbedError),
    /// A new collection could not be named.
    #[error(transparent)]
    Rebuild(#[from] RebuildError),
    /// A store failed.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// What was asked for is not to be had.
    #[error("{0}")]
    Refused(String),
    /// Notes were given up.
    #[error(
        "{0} notes were given up under the new version, so the old one is still served: see \
         `elf dead list`, mend and retry them or purge them, then run `elf reindex --swap` again"
    )]
    DeadLetters(u64),
    /// The new collection is not what Postgres says.
    #[error(
        "the new collection differs from Postgres ({} missing, {} stale, {} orphaned points, {} \
         inconsistent notes), so the old one is still served; --verbose says which. `elf enqueue --all` \
         has them written again, without embedding; then run this again",
        .0.missing, .0.stale, .0.orphaned, .0.inconsistent
    )]
    Drift(verify::Report),
    /// It was told to.
    #[error("stopped; what is done is kept: the same command goes on")]
    Stopped,
}

impl From<StoreError> for ReindexError {
    fn from(error: StoreError) -> Self {
        TargetError::from(error).into()
    }
}

impl From<IndexError> for ReindexError {
    fn from(error: IndexError) -> Self {
        TargetError::from(error).into()
    }
}

impl From<AliasError> for ReindexError {
    fn from(error: AliasError) -> Self {
        SetupError::from(error).into()
    }
}

/// What happens once the version has caught up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// It is kept in step, and the old one is served.
    Wait,
    /// It is served, if it is as it must be.
    Swap,
}

/// Builds the version of `worker`, whose tools these are, until nothing but dead
/// letters is left for it, or goes on where an earlier run ended.
pub async fn run(
    tools: &Tools,
    worker: &Worker,
    then: Then,
    options: &verify::Options,
    stop: CancellationToken,
) -> Result<Report, ReindexError> {
    let Tools { store, version, .. } = tools;
    let job = Job::take(store, "reindex", &version.name, options.progress.clone()).await?;
    let outcome = job
        .run(async {
            if begin(tools).await? == VersionState::Active {
                // A swap may have died before it came to the alias.
                worker::check(tools).await?;
                return report(tools, worker, None).await;
            }
            worker::check(tools).await?;
            catch_up(tools, worker, job.progress(), &stop).await?;
            if then == Then::Wait {
                return report(tools, worker, None).await;
            }
            tokio::select! {
                verified = swap(tools, options) => report(tools, worker, Some(verified?)).await,
                () = stop.cancelled() => Err(ReindexError::Stopped),
            }
        })
        .await;
    job.end().await;
    outcome
}

async fn report(
    tools: &Tools,
    worker: &Worker,
    verified: Option<verify::Report>,
) -> Result<Report, ReindexError> {
    let Tools { store, version, .. } = tools;
    Ok(Report {
        version: version.name.clone(),
        state: worker::kept_in_step(store, &version.name).await?.state,
        work: worker.totals(),
        dead_letters: dead_letters(tools).await?,
        verified,
    })
}

async fn dead_letters(tools: &Tools) -> Result<u64, StoreError> {
    let counts = tools.store.outbox_counts(Some(&tools.version.name)).await?;
    Ok(counts.dead as u64)
}

/// Has the version kept in step from now on, and says what is done with it.
async fn begin(tools: &Tools) -> Result<VersionState, ReindexError> {
    let Tools {
        store,
        version,
        alias,
        ..
    } = tools;
    let known = store.versions().await?;
    if !known.iter().any(|v| v.state == VersionState::Active) {
        return Err(SetupError::Mismatch(
            "nothing is indexed yet, so there is nothing to change over from: run `elf worker`"
                .into(),
        )
        .into());
    }
    match known.iter().find(|v| v.version.name == version.name) {
        Some(own) if own.state == VersionState::Retired => {
            // Before it leaves the state in which a rollback finds it.
            check_retired(tools).await?;
            store.resume_version(&version.name).await?;
            tracing::info!(
                version = version.name,
                "the version goes on from where it was retired"
            );
            return Ok(VersionState::Building);
        }
        Some(own) => return Ok(own.state),
        None => {}
    }
    let registered = store.registered_collections().await?;
    if let Some(other) = registered.iter().find(|c| c.alias != *alias) {
        return Err(SetupError::Mismatch(format!(
            "the database is indexed under the alias {:?}, and storage.qdrant.collection is {alias:?}: \
             put the setting back",
            other.alias
        ))
        .into());
    }
    // First the engine: a collection that is registered is there, or was lost.
    let spec = worker::spec(tools);
    let collection = free_name(&site(tools), &registered, &spec).await?;
    tools.index.create_collection(&collection, &spec).await?;
    store.begin_version(version, &collection, alias).await?;
    tracing::info!(
        version = version.name,
        collection,
        "the version is built from now on"
    );
    Ok(VersionState::Building)
}

/// A retired version's collection has to be one that can be gone on with.
async fn check_retired(tools: &Tools) -> Result<(), ReindexError> {
    let registered = tools.store.registered_collections().await?;
    let main = registered
        .iter()
        .find(|c| c.version == tools.version.name && c.is_active());
    let Some(main) = main else {
        return Ok(());
    };
    if let Some(info) = tools.index.collection(&main.name).await? {
        let spec = worker::spec(tools);
        worker::check_spec(&main.name, &info, &spec, VersionState::Retired)?;
    }
    Ok(())
}

/// What a rebuild of what a worker keeps works with.
pub fn site(tools: &Tools) -> Site {
    Site {
        store: tools.store.clone(),
        index: tools.index.clone(),
        alias: tools.alias.clone(),
        bm25: tools.bm25.clone(),
    }
}

/// Works until nothing but dead letters is left: retries are waited for, and so are
/// notes that another process has leased.
async fn catch_up(
    tools: &Tools,
    worker: &Worker,
    progress: &Progress,
    stop: &CancellationToken,
) -> Result<(), ReindexError> {
    let counts = tools.store.outbox_counts(Some(&tools.version.name)).await?;
    let due = (counts.pending + counts.leased + counts.failed) as u64;
    let enough = stop.child_token();
    let watching = async {
        let outcome = loop {
            let notes = worker.totals().notes;
            progress.set(notes, due.max(notes));
            if stop.is_cancelled() {
                break Err(ReindexError::Stopped);
            }
            match is_caught_up(tools).await {
                Ok(true) => break Ok(()),
                // The worker waits for Postgres too, and says so.
                Ok(false) | Err(ReindexError::Target(TargetError::Store(_))) => {}
                Err(error) => break Err(error),
            }
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
        };
        enough.cancel();
        outcome
    };
    let ((), outcome) = tokio::join!(worker.run(enough.clone()), watching);
    outcome
}

async fn is_caught_up(tools: &Tools) -> Result<bool, ReindexError> {
    let Tools { store, version, .. } = tools;
    // Nobody is there to change the configuration while this runs.
    if let Some(error @ EmbedError::Config { .. }) = tools.provider.state().error() {
        return Err(ReindexError::Embed(error.clone()));
    }
    match worker::kept_in_step(store, &version.name).await {
        Err(SetupError::Store(error)) => return Err(error.into()),
        outcome => outcome?,
    };
    Ok(store.is_caught_up(&version.name).await?)
}

/// Serves the version if its collection is exactly what Postgres says.
async fn swap(tools: &Tools, options: &verify::Options) -> Result<verify::Report, ReindexError> {
    let Tools {
        store,
        index,
        version,
        alias,
        ..
    } = tools;
    let dead = dead_letters(tools).await?;
    if dead > 0 {
        return Err(ReindexError::DeadLetters(dead));
    }
    let collections = store.collections(&version.name).await?;
    let main = collections.iter().find(|c| c.is_active()).ok_or_else(|| {
        ReindexError::Refused(format!("{} has no collection to serve", version.name))
    })?;
    let target = Target {
        store: store.clone(),
        index: index.clone(),
        version: version.name.clone(),
        collection: main.name.clone(),
    };
    options
        .progress
        .set(0, store.count_points(&version.name).await?);
    let report = verify::all(&target, version.dim, options).await?;
    if report.unrepaired() > 0 {
        return Err(ReindexError::Drift(report));
    }
    if !store
        .serve_version(&version.name, VersionState::Building)
        .await?
    {
        return Err(ReindexError::Refused(format!(
            "{} is not being built any more",
            version.name
        )));
    }
    alias::settle(store, &**index, alias).await?;
    tracing::info!(version = version.name, "the version is served");
    Ok(report)
}

/// Reads, cuts and counts; writes nothing. `progress` counts notes.
pub async fn estimate(
    store: &Store,
    chunker: &Arc<Chunker>,
    version: &Version,
    progress: &Progress,
) -> Result<Estimate, StoreError> {
    let mut estimate = Estimate {
        version: version.name.clone(),
        ..Estimate::default()
    };
    let live = store.note_counts(&version.name).await?.live;
    progress.set(0, live as u64);
    let mut after = Uuid::nil();
    loop {
        let page = store.live_texts(after, PAGE_NOTES, PAGE_BYTES).await?;
        let Some((last, _)) = page.last() else {
            return Ok(estimate);
        };
        after = *last;
        let notes = page.len() as u64;
        let cut = {
            let chunker = chunker.clone();
            move || -> Vec<Piece> {
                // What cannot be cut becomes a dead letter and is not embedded.
                page.iter()
                    .filter_map(|(_, text)| worker::pieces(&chunker, text).ok())
                    .flatten()
                    .collect()
            }
        };
        let pieces = tokio::task::spawn_blocking(cut)
            .await
            .expect("a panic is caught note by note");
        let hashes: Vec<TextHash> = pieces.iter().map(|piece| piece.hash).collect();
        let mut known: HashSet<TextHash> = store
            .known_hashes(version, &hashes)
            .await?
            .into_iter()
            .collect();
        estimate.notes += notes;
        for Piece { chunk, hash } in pieces {
            estimate.chunks += 1;
            if !known.insert(hash) {
                estimate.known += 1;
            } else if chunk.tokens > chunker.fixed_tokens() {
                estimate.to_embed += 1;
                estimate.tokens += chunk.tokens as u64;
            }
        }
        progress.add(notes);
    }
}

/// Serves the version that was retired last again. Needs nothing of its settings: what
/// has changed meanwhile is put into the outbox, for a worker that has them.
pub async fn rollback(site: &Site) -> Result<RolledBack, ReindexError> {
    let job = Job::take(&site.store, "rollback", &site.alias, Arc::default()).await?;
    let outcome = job.run(roll_back(site)).await;
    job.end().await;
    outcome
}

async fn roll_back(site: &Site) -> Result<RolledBack, ReindexError> {
    let Site { store, index, .. } = site;
    let known = store.versions().await?;
    let Some(active) = known.iter().find(|v| v.state == VersionState::Active) else {
        return Err(ReindexError::Refused(
            "nothing is indexed yet, so there is nothing to go back to".into(),
        ));
    };
    let registered = store.registered_collections().await?;
    let main = |version: &Known| -> Option<&Registered> {
        registered
            .iter()
            .find(|c| c.version == version.version.name && c.is_active())
    };
    let retired = known.iter().find(|v| v.state == VersionState::Retired);
    if let Some(serving) = main(active)
        && (!active.enqueued || index.resolve(&serving.alias).await? != Some(serving.name.clone()))
    {
        // An earlier run died on its way. To go back once more would undo it.
        let other = retired.unwrap_or(active);
        return settle(site, &serving.alias, &active.version, &other.version, None).await;
    }
    let Some(retired) = retired else {
        return Err(ReindexError::Refused(
            "no version is retired, so there is nothing to go back to".into(),
        ));
    };
    let name = &retired.version.name;
    let gone = || {
        ReindexError::Refused(format!(
            "the collection of {name} is gone, so it cannot be served again; put its settings back \
             and run `elf reindex`, or free what is left of it with `elf reindex drop`"
        ))
    };
    let old = main(retired).ok_or_else(gone)?;
    if index.collection(&old.name).await?.is_none() {
        return Err(gone());
    }
    if !store.serve_version(name, VersionState::Retired).await? {
        return Err(ReindexError::Refused(format!(
            "{name} is not retired any more"
        )));
    }
    let left = Some(active.version.name.clone());
    settle(site, &old.alias, &retired.version, &active.version, left).await
}

/// What a rollback does once Postgres says what is served.
async fn settle(
    site: &Site,
    alias: &str,
    served: &Version,
    other: &Version,
    retired: Option<String>,
) -> Result<RolledBack, ReindexError> {
    let Site { store, index, .. } = site;
    alias::settle(store, &**index, alias).await?;
    store.enqueue_version(&served.name).await?;
    let counts = store.outbox_counts(Some(&served.name)).await?;
    tracing::info!(version = served.name, "the version is served again");
    Ok(RolledBack {
        version: served.name.clone(),
        retired,
        due: (counts.pending + counts.leased + counts.failed) as u64,
        settings: changes(other, served),
    })
}

/// Frees every version that is not served, or the one of this name.
pub async fn drop(site: &Site, only: Option<&str>) -> Result<Vec<Dropped>, ReindexError> {
    let job = Job::take(&site.store, "drop", &site.alias, Arc::default()).await?;
    let outcome = job.run(drop_versions(site, only)).await;
    job.end().await;
    outcome
}

async fn drop_versions(site: &Site, only: Option<&str>) -> Result<Vec<Dropped>, ReindexError> {
    let Site { store, index, .. } = site;
    let known = store.versions().await?;
    if let Some(name) = only {
        match known.iter().find(|v| v.version.name == name) {
            Some(v) if v.state == VersionState::Active => {
                return Err(ReindexError::Refused(format!(
                    "{name} is served: change over to another version first"
                )));
            }
            Some(_) => {}
            None => {
                return Err(ReindexError::Refused(format!(
                    "there is no version {name:?} in this database"
                )));
            }
        }
    }
    let doomed = known
        .iter()
        .filter(|v| v.state != VersionState::Active)
        .map(|v| &v.version.name)
        .filter(|name| only.is_none_or(|only| only == *name));
    let mut dropped = Vec::new();
    for version in doomed {
        if !store.condemn_version(version).await? {
            continue;
        }
        let mut collections = Vec::new();
        for collection in store.registered_collections().await? {
            if collection.version == *version {
                index.drop_collection(&collection.name).await?;
                collections.push(collection.name);
            }
        }
        let chunks = store.drop_version(version).await?;
        tracing::info!(version, chunks, "dropped");
        dropped.push(Dropped {
            version: version.clone(),
            collections,
            chunks,
        });
    }
    Ok(dropped)
}
