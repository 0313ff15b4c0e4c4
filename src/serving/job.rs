//! The lease on the one job that may change the index as a whole: a rebuild, a reindex, a swap.
//! Two at a time would point the alias at each other's collections.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::ServingError;
use crate::index::IndexError;
use crate::store::{self, JobLease, RunningJob, Store, StoreError};

/// After this time another process may take the lease of a job that died.
const LEASE: Duration = Duration::from_secs(10);
const RENEW_EVERY: Duration = Duration::from_secs(3);
/// How long the end of a job waits for writes in flight. Longer than most requests to the
/// vector engine.
const WRITE_DRAIN_LIMIT: Duration = Duration::from_secs(30);
/// How often to look whether the holder of the lease is alive.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// A held lease on the job. A task renews it until this is dropped or ended.
pub struct Job {
    store: Store,
    holder: String,
    /// What each step of the job proves in its own transaction.
    pub lease: JobLease,
    /// How far the job is.
    pub progress: Arc<Progress>,
    lost: CancellationToken,
    renewing: AbortOnDropHandle<()>,
    /// The writes in flight. They run to their end even if the job fails or loses its lease.
    pub writes: TaskTracker,
}

/// How far a job is, in points or notes.
#[derive(Debug, Default)]
pub struct Progress {
    done: AtomicU64,
    total: AtomicU64,
}

impl Job {
    /// Takes the lease. If another process holds it, waits until that process renews it, which
    /// is an error, or the lease expires: about ten seconds.
    pub async fn take(
        store: &Store,
        kind: &str,
        subject: &str,
        progress: Arc<Progress>,
    ) -> Result<Self, ServingError> {
        let holder = store::holder();
        let mut in_the_way: Option<RunningJob> = None;
        loop {
            let job = store.take_job(kind, subject, &holder, LEASE).await?;
            if job.holder == holder {
                break;
            }
            match &in_the_way {
                None => {
                    tracing::info!(
                        kind = job.kind,
                        subject = job.subject,
                        holder = job.holder,
                        "job lease is held, looking whether its holder is alive"
                    );
                    in_the_way = Some(job);
                }
                Some(before) if *before != job => return Err(ServingError::JobRunning(job)),
                Some(_) => {}
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        let lost = CancellationToken::new();
        let renewing = tokio::spawn(renew(
            store.clone(),
            holder.clone(),
            progress.clone(),
            lost.clone(),
        ));
        Ok(Self {
            store: store.clone(),
            lease: JobLease::of(&holder),
            holder,
            progress,
            lost,
            renewing: AbortOnDropHandle::new(renewing),
            writes: TaskTracker::new(),
        })
    }

    /// Waits for a request to the vector engine. No other process can take the job meanwhile, so the
    /// request cannot come after one of that process.
    pub async fn alone<T>(
        &self,
        request: impl Future<Output = Result<T, IndexError>>,
    ) -> Result<T, ServingError> {
        let held = self.store.hold_job(&self.lease).await?;
        let answer = request.await;
        let released = held.release().await;
        let answer = answer?;
        released?;
        Ok(answer)
    }

    /// Runs `work` until it ends or the lease is lost. Boxed, see [`crate::telemetry::timed`].
    pub fn run<'w, T, E: From<ServingError>>(
        &'w self,
        work: impl Future<Output = Result<T, E>> + 'w,
    ) -> impl Future<Output = Result<T, E>> + 'w {
        let work = Box::pin(work);
        async move {
            tokio::select! {
                done = work => done,
                () = self.lost.cancelled() => {
                    Err(ServingError::Store(StoreError::JobLost).into())
                }
            }
        }
    }

    /// Waits for the writes in flight and releases the lease. If that fails it expires.
    pub async fn end(self) {
        self.writes.close();
        if tokio::time::timeout(WRITE_DRAIN_LIMIT, self.writes.wait())
            .await
            .is_err()
        {
            tracing::warn!("waiting for the writes in flight timed out");
        }
        self.renewing.abort();
        if let Err(error) = self.store.end_job(&self.holder).await {
            tracing::debug!(%error, "could not release the job lease, it will expire");
        }
    }
}

async fn renew(store: Store, holder: String, progress: Arc<Progress>, lost: CancellationToken) {
    loop {
        tokio::time::sleep(RENEW_EVERY).await;
        let (done, total) = (progress.done(), progress.total());
        let renewal = store.renew_job(&holder, LEASE, done, total);
        // A renewal without an answer must not delay the next one.
        match tokio::time::timeout(LEASE / 2, renewal).await {
            Ok(Ok(true)) => {}
            Ok(Ok(false)) => return lost.cancel(),
            // While Postgres is unavailable for every process, none can take the lease over.
            Ok(Err(error)) => tracing::debug!(%error, "could not renew the job lease"),
            Err(_) => tracing::debug!("renewing the job lease timed out"),
        }
    }
}

impl Progress {
    /// Adds to what is done.
    pub fn add(&self, more: u64) {
        self.done.fetch_add(more, Ordering::Relaxed);
    }

    /// Sets what is done and the total.
    pub fn set(&self, done: u64, total: u64) {
        self.done.store(done, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
    }

    /// Points or notes so far.
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Points or notes in all.
    pub fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }
}
