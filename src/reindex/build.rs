//! Builds a version, compares it with Postgres and serves it.

use std::time::Duration;

use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::ReindexError;
use super::drop::{drop_version, is_half_dropped};
use crate::embed::EmbedError;
use crate::serving::{self, CollectionTarget, Job, Progress, ServingError};
use crate::store::{Lifecycle, StoreError};
use crate::verify;
use crate::worker::{self, Pipeline, Worker};

/// How often to look whether a version has caught up.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// The result of building a version.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The version that the configuration asks for.
    pub version: String,
    /// After this run.
    pub state: Lifecycle,
    /// What this run did.
    #[serde(flatten)]
    pub work: worker::Report,
    /// Dead letters that the version has.
    pub dead_letters: u64,
    /// The comparison before the swap; null when nothing was swapped.
    pub verified: Option<verify::Report>,
}

/// What happens once the version has caught up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// Keep the old version served; workers keep the new one in step.
    Wait,
    /// Serve the new version, if it equals Postgres.
    Swap,
}

/// Builds the version of `worker` until only dead letters remain, or resumes an earlier run.
/// `pipeline` is the worker's own.
pub async fn run(
    pipeline: &Pipeline,
    worker: &Worker,
    then: Then,
    options: &verify::Options,
    stop: CancellationToken,
) -> Result<Report, ReindexError> {
    let (store, version) = (&pipeline.serving.store, &pipeline.version);
    // It may wait for the lease of a job that died.
    let taking = Job::take(store, "reindex", &version.name, options.progress.clone());
    let job = stop.run_until_cancelled(taking).await;
    let job = job.ok_or(ReindexError::Stopped)??;
    let outcome = job
        .run(async {
            if begin(pipeline, &job).await? == Lifecycle::Active {
                // An earlier swap may have died before it moved the alias.
                serving::ensure_ready(&pipeline.serving, &pipeline.version).await?;
                return report(pipeline, worker, None).await;
            }
            serving::ensure_ready(&pipeline.serving, &pipeline.version).await?;
            catch_up(pipeline, worker, &job.progress, &stop).await?;
            if then == Then::Wait {
                return report(pipeline, worker, None).await;
            }
            tokio::select! {
                verified = swap(pipeline, &job, options) => report(pipeline, worker, Some(verified?)).await,
                () = stop.cancelled() => Err(ReindexError::Stopped),
            }
        })
        .await;
    job.end().await;
    outcome
}

async fn report(
    pipeline: &Pipeline,
    worker: &Worker,
    verified: Option<verify::Report>,
) -> Result<Report, ReindexError> {
    let (store, version) = (&pipeline.serving.store, &pipeline.version);
    Ok(Report {
        version: version.name.clone(),
        state: serving::version_unless_retired(store, &version.name)
            .await?
            .state,
        work: worker.totals(),
        dead_letters: dead_letters(pipeline).await?,
        verified,
    })
}

async fn dead_letters(pipeline: &Pipeline) -> Result<u64, StoreError> {
    let (store, version) = (&pipeline.serving.store, &pipeline.version.name);
    let counts = store.outbox_counts(Some(version)).await?;
    Ok(counts.dead as u64)
}

/// Registers the version, so that workers keep it in step from now on. Returns its state.
async fn begin(pipeline: &Pipeline, job: &Job) -> Result<Lifecycle, ReindexError> {
    let (store, version) = (&pipeline.serving.store, &pipeline.version);
    let alias = &pipeline.serving.alias;
    let known = store.versions().await?;
    if !known.iter().any(|v| v.state == Lifecycle::Active) {
        return Err(ServingError::NothingIndexed.into());
    }
    let registered = store.registered_collections().await?;
    match known.iter().find(|v| v.version.name == version.name) {
        Some(own) if is_half_dropped(own, &registered) => {
            // What it left is of old texts.
            drop_version(&pipeline.serving, job, &version.name).await?;
            tracing::info!(version = version.name, "interrupted drop finished");
        }
        Some(own) if own.state == Lifecycle::Retired => {
            // Checked before the version leaves the retired state, in which a rollback finds it.
            check_retired(pipeline).await?;
            store.resume_version(&job.lease, &version.name).await?;
            tracing::info!(version = version.name, "retired version resumed");
            return Ok(Lifecycle::Building);
        }
        Some(own) => return Ok(own.state),
        None => {}
    }
    serving::check_alias(alias, &registered)?;
    serving::check_home(&pipeline.serving).await?;
    // The engine first, so that a registered collection always existed.
    let spec = serving::spec(&pipeline.serving, &pipeline.version);
    let collection = serving::free_collection_name(&pipeline.serving, &spec).await?;
    pipeline
        .serving
        .index
        .create_collection(&collection, &spec)
        .await?;
    store
        .begin_version(&job.lease, version, &collection, alias)
        .await?;
    tracing::info!(
        version = version.name,
        collection,
        "version registered, building it"
    );
    Ok(Lifecycle::Building)
}

/// Checks that the collection of a retired version can be resumed.
async fn check_retired(pipeline: &Pipeline) -> Result<(), ReindexError> {
    let registered = pipeline.serving.store.registered_collections().await?;
    let main = registered
        .iter()
        .find(|c| c.version == pipeline.version.name && c.is_active());
    let Some(main) = main else {
        return Ok(());
    };
    if let Some(info) = pipeline.serving.index.collection(&main.name).await? {
        let spec = serving::spec(&pipeline.serving, &pipeline.version);
        serving::check_spec(&main.name, &info, &spec, Lifecycle::Retired)?;
    }
    Ok(())
}

/// Runs the worker until only dead letters remain. Waits for retries and for notes that
/// another process has leased.
async fn catch_up(
    pipeline: &Pipeline,
    worker: &Worker,
    progress: &Progress,
    stop: &CancellationToken,
) -> Result<(), ReindexError> {
    let (store, version) = (&pipeline.serving.store, &pipeline.version.name);
    let counts = store.outbox_counts(Some(version)).await?;
    let due = (counts.pending + counts.leased + counts.failed) as u64;
    let enough = stop.child_token();
    let watching = async {
        let outcome = loop {
            if stop.is_cancelled() {
                break Err(ReindexError::Stopped);
            }
            match is_caught_up(pipeline).await {
                Ok(true) => break Ok(()),
                // The worker waits for Postgres too, and logs it.
                Ok(false) | Err(ReindexError::Serving(ServingError::Store(_))) => {}
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
    // Until the worker has ended: after a stop, work in flight still gets done.
    let counting = async {
        loop {
            let notes = worker.totals().notes;
            progress.set(notes, due.max(notes));
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    tokio::select! {
        ((), outcome) = async { tokio::join!(worker.run(enough.clone()), watching) } => outcome,
        () = counting => unreachable!("it counts until it is dropped"),
    }
}

async fn is_caught_up(pipeline: &Pipeline) -> Result<bool, ReindexError> {
    let (store, version) = (&pipeline.serving.store, &pipeline.version);
    // The configuration cannot change while this command runs, so waiting would not help.
    if let Some(error @ EmbedError::Config { .. }) = pipeline.provider.state().error() {
        return Err(ReindexError::Embed(error.clone()));
    }
    serving::version_unless_retired(store, &version.name).await?;
    Ok(store.is_caught_up(&version.name).await?)
}

/// Serves the version if its collection equals Postgres.
async fn swap(
    pipeline: &Pipeline,
    job: &Job,
    options: &verify::Options,
) -> Result<verify::Report, ReindexError> {
    let (store, version) = (&pipeline.serving.store, &pipeline.version);
    let dead = dead_letters(pipeline).await?;
    if dead > 0 {
        return Err(ReindexError::DeadLetters(dead));
    }
    let collections = store.collections(&version.name).await?;
    let main = collections.iter().find(|c| c.is_active()).ok_or_else(|| {
        ReindexError::Refused(format!("{} has no collection to serve", version.name))
    })?;
    let target = CollectionTarget::new(&pipeline.serving, &version.name, main.name.clone());
    options
        .progress
        .set(0, store.count_points(&version.name).await?);
    let report = verify::all(&target, version.dim, options).await?;
    if report.unrepaired() > 0 {
        return Err(ReindexError::Drift(report));
    }
    if !store
        .serve_version(&job.lease, &version.name, Lifecycle::Building)
        .await?
    {
        return Err(ReindexError::Refused(format!(
            "{} is not being built any more",
            version.name
        )));
    }
    serving::reconcile_alias(&pipeline.serving).await?;
    tracing::info!(version = version.name, "version served");
    Ok(report)
}
