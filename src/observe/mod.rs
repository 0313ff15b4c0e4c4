//! The observer of a long-running worker: it checks whether Postgres, the vector engine and the
//! provider are available, and counts the backlog and the progress of a rebuild. The metrics,
//! `/readyz`, the admin page and systemd's status line show what it has read.
//!
//! The observer polls at its own pace. So a scrape or a page causes no query, and a count that is
//! slow on a large table runs rarely.

mod checks;
mod counts;
mod health;
mod history;
mod pace;
mod speed;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use serde::Serialize;

pub use health::{Health, Part};
pub use history::History;

use self::pace::Pace;
use self::speed::Speed;
use crate::index::CollectionStatus;
use crate::lock::lock;
use crate::store::{
    Lifecycle, NoteCounts, OutboxCounts, OutboxTable, RegisteredVersion, RunningJob,
};
use crate::telemetry::Metrics;
use crate::worker::{Pipeline, Worker};

/// How often to make the checks and read the backlog.
const LOOK_EVERY: Duration = Duration::from_secs(3);
/// Looks between two samples of the history, and between two checks of the schema.
const LOOKS_PER_SAMPLE: u32 = 2;
/// How often at most to count notes, chunks and dead tuples: that reads whole tables.
const COUNT_EVERY: Duration = Duration::from_secs(15);
/// Longer than the time limits of one look together, so a process without a look for this long
/// hangs.
const STUCK_AFTER: Duration = Duration::from_secs(60);

/// Polls the state of a worker, Postgres, the index and the provider.
pub struct Observer {
    pub pipeline: Pipeline,
    pub worker: Arc<Worker>,
    health: Arc<Health>,
    metrics: Metrics,
    pub started_at: DateTime<Utc>,
    seen: Mutex<Seen>,
}

/// The state as of the latest looks.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    /// When Postgres was last read.
    pub at: Option<DateTime<Utc>>,
    pub outbox: Option<OutboxCounts>,
    /// Size and dead tuples of the outbox table.
    pub table: Option<OutboxTable>,
    /// Live and indexed notes.
    pub notes: Option<NoteCounts>,
    /// Every collection that is registered in Postgres.
    pub collections: Vec<Collection>,
    /// Every registered embedding version.
    pub versions: Vec<RegisteredVersion>,
    /// The rebuild or reindex that is running.
    pub job: Option<Job>,
    /// The last half hour.
    pub history: History,
    speed: Speed,
    looked: Option<Instant>,
}

/// A collection, as Postgres and the vector engine have it.
#[derive(Debug, Clone, Serialize)]
pub struct Collection {
    /// Its name in the engine.
    pub name: String,
    /// The alias that it was made for.
    pub alias: String,
    /// The version that it holds.
    pub version: String,
    /// Its state, relative to its version.
    pub state: Lifecycle,
    /// Whether the alias points at it.
    pub served: bool,
    /// Its points; `None` when the engine does not have it or does not answer.
    pub points: Option<u64>,
    /// What the engine says of it.
    pub status: Option<CollectionStatus>,
}

/// A rebuild or reindex that runs in any process.
#[derive(Debug, Clone, Serialize)]
pub struct Job {
    /// The job and its progress.
    #[serde(flatten)]
    pub running: RunningJob,
    /// Points or notes per second over the last minute; `None` before the second look.
    pub rate_per_sec: Option<f64>,
    /// Seconds until the end at that rate.
    pub eta_secs: Option<f64>,
}

impl Observer {
    /// An observer that has not looked yet.
    pub fn new(
        pipeline: Pipeline,
        worker: Arc<Worker>,
        health: Arc<Health>,
        metrics: Metrics,
    ) -> Self {
        Self {
            pipeline,
            worker,
            health,
            metrics,
            started_at: Utc::now(),
            seen: Mutex::default(),
        }
    }

    /// A copy of the latest state.
    pub fn seen(&self) -> Seen {
        lock(&self.seen).clone()
    }

    /// Whether the observer has looked lately; if not, this process hangs.
    pub fn is_awake(&self) -> bool {
        let looked = lock(&self.seen).looked;
        looked.is_none_or(|looked| looked.elapsed() < STUCK_AFTER)
    }

    /// Polls until dropped.
    pub async fn run(&self) {
        tokio::join!(
            self.keep_checking(),
            self.keep_counting_backlog(),
            self.keep_describing_collections(),
            self.keep_counting_notes(),
        );
    }

    /// Checks in their own loop, apart from the counts: a check has a time limit, a count has
    /// none.
    async fn keep_checking(&self) {
        let mut ticks = tokio::time::interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        for n in (0..LOOKS_PER_SAMPLE).cycle() {
            ticks.tick().await;
            // A failure lasts until the schema is read again.
            self.check(n == 0 || !self.schema_holds()).await;
            if n == 0 {
                self.sample();
            }
            self.metrics.free_samples();
            lock(&self.seen).looked = Some(Instant::now());
        }
    }

    /// Ignores errors: the checks report them.
    async fn keep_counting_backlog(&self) {
        let mut pace = Pace::new(LOOK_EVERY);
        loop {
            pace.run_when_due(async { self.count_backlog().await.is_ok() })
                .await;
        }
    }

    async fn keep_describing_collections(&self) {
        let mut pace = Pace::new(LOOK_EVERY);
        loop {
            pace.run_when_due(async {
                self.describe_collections().await;
                true
            })
            .await;
        }
    }

    /// Counts notes in one worker of all: a count reads whole tables, and its snapshot holds
    /// back vacuum.
    async fn keep_counting_notes(&self) {
        let mut pace = Pace::new(COUNT_EVERY);
        loop {
            self.worker.wait_for_upkeep_lease().await;
            pace.run_when_due(async { self.count_notes().await.is_ok() })
                .await;
        }
    }

    fn sample(&self) {
        let ages = self.worker.take_ages();
        let notes = self.worker.totals().notes;
        let mut seen = lock(&self.seen);
        let outbox = seen.outbox.clone();
        seen.history.push(Utc::now(), outbox.as_ref(), notes, ages);
    }
}
