//! Work on the index as a whole: a rebuild, a reindex, a swap. One at a time, over
//! all processes, or two of them would point the alias at each other's collections.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::store::{self, RunningJob, Store, StoreError};

/// How long a job that died keeps others waiting.
const LEASE: Duration = Duration::from_secs(10);
const RENEW_EVERY: Duration = Duration::from_secs(3);
/// How long writes in flight may take: longer than a request to either store, as a rule.
const WRITES_END: Duration = Duration::from_secs(30);
/// How often to look whether a job that is in the way still lives.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The lease on the one job; it is renewed until this is dropped or ended.
pub struct Job {
    store: Store,
    holder: String,
    progress: Arc<Progress>,
    lost: CancellationToken,
    renewing: AbortHandle,
    writes: TaskTracker,
}

/// How far a job is, in points or notes.
#[derive(Debug, Default)]
pub struct Progress {
    done: AtomicU64,
    total: AtomicU64,
}

/// Why a job cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// Another one is running.
    #[error(
        "a {} of {} is running: {}, since {}, {} of {} done; wait for it, or stop it and run this again",
        .0.kind, .0.subject, .0.holder, .0.started_at.format("%F %T UTC"), .0.done, .0.total
    )]
    Running(RunningJob),
    /// The lease ran out, while Postgres was away for one, and somebody else has it.
    #[error("another process has taken over")]
    Lost,
    /// Postgres.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Job {
    /// Takes the lease. Where somebody has it, waits until that one shows a sign of
    /// life, which is an error, or has run out of its lease: about ten seconds.
    pub async fn take(
        store: &Store,
        kind: &str,
        subject: &str,
        progress: Arc<Progress>,
    ) -> Result<Self, JobError> {
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
                        "looking whether another job is still alive"
                    );
                    in_the_way = Some(job);
                }
                Some(before) if *before != job => return Err(JobError::Running(job)),
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
            holder,
            progress,
            lost,
            renewing: renewing.abort_handle(),
            writes: TaskTracker::new(),
        })
    }

    /// How far it is.
    pub fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }

    /// Its writes in flight, which go to their end whatever becomes of the job.
    pub fn writes(&self) -> &TaskTracker {
        &self.writes
    }

    /// Works as long as the lease is ours. Boxed, see [`crate::telemetry::timed`].
    pub fn run<'w, T, E: From<JobError>>(
        &'w self,
        work: impl Future<Output = Result<T, E>> + 'w,
    ) -> impl Future<Output = Result<T, E>> + 'w {
        let work = Box::pin(work);
        async move {
            tokio::select! {
                done = work => done,
                () = self.lost.cancelled() => Err(JobError::Lost.into()),
            }
        }
    }

    /// Waits for the writes in flight and gives the lease back. When that fails it runs out
    /// by itself.
    pub async fn end(self) {
        self.writes.close();
        if tokio::time::timeout(WRITES_END, self.writes.wait())
            .await
            .is_err()
        {
            tracing::warn!("writes in flight did not end in time");
        }
        self.renewing.abort();
        if let Err(error) = self.store.end_job(&self.holder).await {
            tracing::debug!(%error, "could not give the job back; it will run out");
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.renewing.abort();
    }
}

async fn renew(store: Store, holder: String, progress: Arc<Progress>, lost: CancellationToken) {
    loop {
        tokio::time::sleep(RENEW_EVERY).await;
        let (done, total) = (progress.done(), progress.total());
        let renewal = store.renew_job(&holder, LEASE, done, total);
        // One that is not answered must not keep the next one from coming about in time.
        match tokio::time::timeout(LEASE / 2, renewal).await {
            Ok(Ok(true)) => {}
            Ok(Ok(false)) => return lost.cancel(),
            // Where Postgres is away for everybody, nobody can take it over either.
            Ok(Err(error)) => tracing::debug!(%error, "could not renew the job's lease"),
            Err(_) => tracing::debug!("the job's lease was not renewed in time"),
        }
    }
}

impl Progress {
    /// So many more are done.
    pub fn add(&self, more: u64) {
        self.done.fetch_add(more, Ordering::Relaxed);
    }

    /// So many are done, of so many.
    pub fn set(&self, done: u64, total: u64) {
        self.done.store(done, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
    }

    /// Done so far.
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// In all.
    pub fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }
}
