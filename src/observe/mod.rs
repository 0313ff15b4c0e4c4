//! The observer of a long-running worker: it checks whether Postgres, the vector engine and the
//! provider are available, and counts the backlog and the progress of a rebuild. The metrics,
//! `/readyz`, the admin page and systemd's status line show what it has read.
//!
//! The observer polls at its own pace. So a scrape or a page causes no query, and a count that is
//! slow on a large table runs rarely.

mod health;
mod history;
mod pace;
mod speed;

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use metrics::gauge;
use serde::Serialize;

pub use health::{Health, Part};
pub use history::History;

use self::pace::Pace;
use self::speed::Speed;
use crate::embed::EmbedError;
use crate::error_class::ErrorClass;
use crate::index::CollectionStatus;
use crate::registry::{self, IndexContext, RegistryError};
use crate::store::{
    CollectionRow, Lifecycle, NoteCounts, OutboxCounts, OutboxTable, RegisteredVersion, RunningJob,
    Store, StoreError,
};
use crate::telemetry::Metrics;
use crate::worker::{Worker, WorkerContext};

/// How often to make the checks and read the backlog.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Looks between two samples of the history.
const LOOKS_PER_SAMPLE: u32 = 3;
/// How often at most to count notes, chunks and dead tuples: that reads whole tables.
const COUNT_EVERY: Duration = Duration::from_secs(15);
/// Time limit for an answer of a store; after it the store counts as unavailable.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Longer than the time limits of one look together, so a process without a look for this long
/// hangs.
const STUCK_AFTER: Duration = Duration::from_secs(60);

/// Polls the state of a worker, its stores and its provider.
pub struct Observer {
    context: WorkerContext,
    worker: Arc<Worker>,
    health: Arc<Health>,
    metrics: Metrics,
    started_at: DateTime<Utc>,
    seen: Mutex<Seen>,
}

/// The state as of the latest looks.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    /// When Postgres was last read.
    pub at: Option<DateTime<Utc>>,
    /// The backlog.
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
        context: WorkerContext,
        worker: Arc<Worker>,
        health: Arc<Health>,
        metrics: Metrics,
    ) -> Self {
        Self {
            context,
            worker,
            health,
            metrics,
            started_at: Utc::now(),
            seen: Mutex::default(),
        }
    }

    /// Postgres, for what an operator changes.
    pub fn store(&self) -> &Store {
        &self.context.stores.store
    }

    /// The worker's context.
    pub fn context(&self) -> &WorkerContext {
        &self.context
    }

    /// The worker that it observes.
    pub fn worker(&self) -> &Worker {
        &self.worker
    }

    /// When the observer was made.
    pub fn started_at(&self) -> DateTime<Utc> {
        self.started_at
    }

    /// A copy of the latest state.
    pub fn seen(&self) -> Seen {
        self.lock().clone()
    }

    /// Whether the observer has looked lately; if not, this process hangs.
    pub fn is_awake(&self) -> bool {
        let looked = self.lock().looked;
        looked.is_none_or(|looked| looked.elapsed() < STUCK_AFTER)
    }

    /// Polls until dropped.
    pub async fn run(&self) {
        tokio::join!(
            self.keep_checking(),
            keep(LOOK_EVERY, || self.count_backlog()),
            keep(LOOK_EVERY, || self.look_at_collections()),
            self.keep_counting(),
        );
    }

    /// Checks in their own loop, apart from the counts: a check has a time limit, a count has
    /// none.
    async fn keep_checking(&self) {
        let mut ticks = tokio::time::interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        for n in (0..LOOKS_PER_SAMPLE).cycle() {
            ticks.tick().await;
            self.check().await;
            if n == 0 {
                self.sample();
            }
            self.metrics.upkeep();
            self.lock().looked = Some(Instant::now());
        }
    }

    /// Counts notes in one worker of all: a count reads whole tables, and its snapshot holds
    /// back vacuum.
    async fn keep_counting(&self) {
        let mut pace = Pace::new(COUNT_EVERY);
        loop {
            self.worker.upkeep().await;
            pace.keep(async { self.count_notes().await.is_ok() }).await;
        }
    }

    /// Makes every check of `/readyz`.
    pub async fn check(&self) {
        let WorkerContext {
            stores: IndexContext { store, .. },
            version,
            ..
        } = &self.context;
        let config = async {
            registry::kept_in_step(store, &version.name).await?;
            Ok::<(), RegistryError>(store.check_schema().await?)
        };
        let (config, alias) = tokio::join!(
            tokio::time::timeout(ANSWER_TIMEOUT, config),
            self.look_at_alias()
        );
        self.record_postgres_check(
            config.unwrap_or_else(|_| Err(StoreError::Unavailable(no_answer("Postgres")).into())),
        );
        match alias {
            Ok(Some(alias)) => self.record_index_check(alias),
            Ok(None) => self.health.set(Part::Index, None),
            Err(silence) => self.health.set(Part::Index, Some(silence)),
        }
        let circuit = self.context.provider.state();
        let problem = circuit.error().map(EmbedError::to_string);
        self.health.set(Part::Provider, problem);
        let outage = self.worker.outage().map(|outage| outage.reason);
        self.health.set(Part::Worker, outage);
    }

    /// What is wrong with the alias. `Ok(None)` when the engine answers but Postgres does not,
    /// `Err` when the engine does not answer.
    async fn look_at_alias(&self) -> Result<Option<Result<Option<String>, RegistryError>>, String> {
        let stores = &self.context.stores;
        // The engine alone first: `alias_problem` also queries Postgres, and a Postgres that
        // does not answer must not be reported as an unavailable engine.
        let answer =
            tokio::time::timeout(ANSWER_TIMEOUT, stores.index.resolve(&stores.alias)).await;
        if answer.is_err() {
            return Err(no_answer("the vector engine"));
        }
        let problem = registry::alias_problem(stores);
        Ok(tokio::time::timeout(ANSWER_TIMEOUT, problem).await.ok())
    }

    fn record_postgres_check(&self, found: Result<(), RegistryError>) {
        let health = &self.health;
        let circuit = self.context.provider.state();
        let refused = match circuit.error() {
            Some(error @ EmbedError::Config { .. }) => Some(error.to_string()),
            _ => None,
        };
        match found {
            Ok(()) => {
                health.set(Part::Postgres, None);
                health.set(Part::Schema, None);
                health.set(Part::Config, refused);
            }
            // An unavailable Postgres says nothing about schema and configuration: they keep
            // their last result.
            Err(error) if error.class() != ErrorClass::Configuration => {
                health.set(Part::Postgres, Some(error.to_string()));
            }
            Err(RegistryError::Store(error)) => {
                health.set(Part::Postgres, None);
                health.set(Part::Schema, Some(error.to_string()));
                health.set(Part::Config, refused);
            }
            Err(error) => {
                health.set(Part::Postgres, None);
                health.set(Part::Config, Some(error.to_string()));
            }
        }
    }

    fn record_index_check(&self, found: Result<Option<String>, RegistryError>) {
        // An unavailable store says nothing about the alias: the check keeps its last result.
        let (index, alias) = match found {
            Ok(None) => (None, Some(None)),
            Ok(Some(problem)) => {
                let alias = &self.context.stores.alias;
                (None, Some(Some(format!("the alias {alias:?} {problem}"))))
            }
            Err(RegistryError::Index(error)) => (Some(error.to_string()), None),
            Err(RegistryError::Store(_)) => return,
            Err(error) => (None, Some(Some(error.to_string()))),
        };
        self.health.set(Part::Index, index);
        if let Some(alias) = alias {
            self.health.set(Part::Alias, alias);
        }
    }

    /// Reads the backlog of the served version, the dead letters and the running job.
    async fn count_backlog(&self) -> Result<(), StoreError> {
        let store = &self.context.stores.store;
        let served = store.active_version().await?.map(|version| version.name);
        let outbox = store.outbox_counts(served.as_deref()).await?;
        let reasons = store.dead_reasons().await?;
        let job = store.running_job().await?;
        for (state, rows) in [
            ("pending", outbox.pending),
            ("leased", outbox.leased),
            ("failed", outbox.failed),
            ("dead", outbox.dead),
        ] {
            gauge!("elf_outbox_rows", "state" => state).set(rows as f64);
        }
        gauge!("elf_outbox_oldest_pending_seconds").set(outbox.oldest_pending_secs.unwrap_or(0.0));
        for reason in [
            "text", "provider", "postgres", "index", "process", "unknown",
        ] {
            let letters = reasons.iter().find(|(name, _)| name == reason);
            gauge!("elf_dead_letters", "reason" => reason)
                .set(letters.map_or(0.0, |(_, letters)| *letters as f64));
        }
        gauge!("elf_observed_timestamp_seconds").set(Utc::now().timestamp_millis() as f64 / 1e3);
        let mut seen = self.lock();
        seen.at = Some(Utc::now());
        seen.outbox = Some(outbox);
        seen.job = job.map(|running| seen.speed.of(running, Instant::now()));
        publish_job(seen.job.as_ref());
        Ok(())
    }

    /// Reads versions and collections from Postgres, and the collections' state from the engine.
    async fn look_at_collections(&self) -> Result<(), StoreError> {
        let store = &self.context.stores.store;
        let versions = store.versions().await?;
        let collections = store.registered_collections().await?;
        for state in [Lifecycle::Active, Lifecycle::Building, Lifecycle::Retired] {
            let of_it = collections.iter().filter(|c| c.state == state);
            gauge!("elf_collections", "state" => state.as_str()).set(of_it.count() as f64);
        }
        let collections = self.describe_collections(collections).await;
        let served = collections.iter().find(|c| c.served);
        if let Some(points) = served.and_then(|c| c.points) {
            gauge!("elf_index_points").set(points as f64);
        }
        let mut seen = self.lock();
        seen.versions = versions;
        seen.collections = collections;
        Ok(())
    }

    /// Counts notes, chunks and the outbox's dead tuples.
    async fn count_notes(&self) -> Result<(), StoreError> {
        let store = &self.context.stores.store;
        let served = store.active_version().await?.map(|version| version.name);
        let table = store.outbox_table().await?;
        let notes = store
            .note_counts(served.as_deref().unwrap_or_default())
            .await?;
        gauge!("elf_outbox_dead_tuples").set(table.dead_tuples as f64);
        gauge!("elf_outbox_size_bytes").set(table.size_bytes as f64);
        gauge!("elf_notes", "state" => "live").set(notes.live as f64);
        gauge!("elf_notes", "state" => "indexed").set(notes.indexed as f64);
        gauge!("elf_coverage_ratio").set(coverage(&notes));
        gauge!("elf_live_chunks").set(notes.chunks as f64);
        let mut seen = self.lock();
        seen.table = Some(table);
        seen.notes = Some(notes);
        Ok(())
    }

    async fn describe_collections(&self, registered: Vec<CollectionRow>) -> Vec<Collection> {
        let index = &self.context.stores.index;
        let target = index
            .resolve(&self.context.stores.alias)
            .await
            .unwrap_or_default();
        let mut collections = Vec::with_capacity(registered.len());
        for CollectionRow {
            name,
            alias,
            version,
            state,
        } in registered
        {
            let info = index.collection(&name).await.unwrap_or_default();
            let (points, status) = info.map(|info| (info.points, info.status)).unzip();
            collections.push(Collection {
                served: target.as_ref() == Some(&name),
                name,
                alias,
                version,
                state,
                points,
                status,
            });
        }
        collections
    }

    fn sample(&self) {
        let ages = self.worker.take_ages();
        let notes = self.worker.totals().notes;
        let mut seen = self.lock();
        let outbox = seen.outbox.clone();
        seen.history.push(Utc::now(), outbox.as_ref(), notes, ages);
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().expect("no panic while the lock is held")
    }
}

/// Runs `look` again and again. It ignores errors: the checks report them.
async fn keep<F: Future<Output = Result<(), StoreError>>>(every: Duration, look: impl Fn() -> F) {
    let mut pace = Pace::new(every);
    loop {
        pace.keep(async { look().await.is_ok() }).await;
    }
}

fn no_answer(who: &str) -> String {
    format!(
        "{who} did not answer within {} seconds",
        ANSWER_TIMEOUT.as_secs()
    )
}

fn coverage(notes: &NoteCounts) -> f64 {
    match notes.live {
        0 => 1.0,
        live => notes.indexed as f64 / live as f64,
    }
}

fn publish_job(job: Option<&Job>) {
    for kind in ["rebuild", "reindex"] {
        let job = job.filter(|job| job.running.kind == kind);
        let value = |of: fn(&Job) -> f64| job.map_or(0.0, of);
        gauge!("elf_job_running", "kind" => kind).set(value(|_| 1.0));
        gauge!("elf_job_items_done", "kind" => kind).set(value(|job| job.running.done as f64));
        gauge!("elf_job_items", "kind" => kind).set(value(|job| job.running.total as f64));
        gauge!("elf_job_rate_per_second", "kind" => kind)
            .set(value(|job| job.rate_per_sec.unwrap_or(0.0)));
        gauge!("elf_job_eta_seconds", "kind" => kind).set(value(|job| job.eta_secs.unwrap_or(0.0)));
    }
}
