//! A canary: the version that is built answers a share of the searches, before it is served. What both
//! versions find is counted in Postgres, and the share ends by itself if the new one finds less.

mod tally;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use uuid::Uuid;

use crate::config;
use crate::lock::lock;
use crate::search::{Answer, Request, SearchError, Searcher};
use crate::store::{Store, StoreError};
pub use tally::{Seen, Tallies, Tally};

/// How often a process writes what it has counted, and looks whether a canary runs.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Opens a search of the version that the second configuration asks for. The argument is the version that
/// answers the share; an error if the configuration asks for another.
pub type Open = Box<dyn Fn(String) -> BoxFuture<'static, anyhow::Result<Searcher>> + Send + Sync>;

/// Lets the version that is built answer some of the searches of this process.
pub struct Canary {
    store: Store,
    limits: config::Canary,
    open: Open,
    running: RwLock<Option<Arc<Running>>>,
    /// Counted, and not in Postgres yet.
    counted: Mutex<Tallies>,
}

struct Running {
    version: String,
    share: f64,
    searcher: Searcher,
}

impl Canary {
    /// A canary of the version that the second configuration builds.
    pub fn new(store: Store, limits: config::Canary, open: Open) -> Self {
        Self {
            store,
            limits,
            open,
            running: RwLock::default(),
            counted: Mutex::default(),
        }
    }

    /// Searches with the version that is served, or with the one that is built: always the same for a key
    /// and a query. If the latter fails or does without a part, the former answers. Also returns whether
    /// it was the latter.
    pub async fn search(
        &self,
        served: &Searcher,
        key: Uuid,
        request: &Request,
    ) -> Result<(Answer, bool), SearchError> {
        let running = self.running.read().expect("no holder panics").clone();
        let Some(running) = running else {
            return Ok((served.search(request).await?, false));
        };
        if place(key, &request.text) >= running.share {
            let began = Instant::now();
            let answered = served.search(request).await;
            self.count(|tallies| tallies.served.observe(seen(&answered, began)));
            return Ok((answered?, false));
        }
        let began = Instant::now();
        let answered = running.searcher.search(request).await;
        self.count(|tallies| tallies.canary.observe(seen(&answered, began)));
        match answered {
            Ok(answer) if answer.degraded.is_empty() => Ok((answer, true)),
            _ => Ok((served.search(request).await?, false)),
        }
    }

    fn count(&self, add: impl FnOnce(&mut Tallies)) {
        add(&mut lock(&self.counted));
    }

    /// Follows what Postgres says of the canary, until dropped.
    pub async fn watch(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut refused = None;
        loop {
            ticks.tick().await;
            match self.look().await {
                Ok(()) => refused = None,
                // Searches go on as they are; a warning for each new reason.
                Err(error) => {
                    let reason = format!("{error:#}");
                    if refused.as_ref() != Some(&reason) {
                        tracing::warn!(reason, "no canary");
                        refused = Some(reason);
                    }
                }
            }
        }
    }

    async fn look(&self) -> anyhow::Result<()> {
        self.write().await?;
        let asked = self.store.canary().await?.filter(|row| row.share > 0.0);
        let running = self.running.read().expect("no holder panics").clone();
        let Some(asked) = asked else {
            if let Some(ended) = running {
                tracing::info!(version = ended.version, "canary ended");
                self.run(None);
            }
            return Ok(());
        };
        if let Some(reason) = Tallies::read(asked.tallies).complaint(&self.limits) {
            self.run(None);
            if self.store.end_canary(&asked.version, Some(&reason)).await? {
                tracing::warn!(version = asked.version, reason, "canary ended by itself");
            }
            return Ok(());
        }
        match running {
            Some(running) if (&running.version, running.share) == (&asked.version, asked.share) => {
            }
            _ => {
                self.run(None);
                let searcher = (self.open)(asked.version.clone()).await?;
                tracing::info!(
                    version = asked.version,
                    share = asked.share,
                    "canary answers"
                );
                self.run(Some(Running {
                    version: asked.version,
                    share: asked.share,
                    searcher,
                }));
            }
        }
        Ok(())
    }

    fn run(&self, running: Option<Running>) {
        *self.running.write().expect("no holder panics") = running.map(Arc::new);
    }

    /// Adds what was counted to the row of the canary.
    async fn write(&self) -> Result<(), StoreError> {
        let running = self.running.read().expect("no holder panics").clone();
        let counted = std::mem::take(&mut *lock(&self.counted));
        let Some(running) = running.filter(|_| !counted.is_empty()) else {
            return Ok(());
        };
        let add = |held| {
            let mut tallies = Tallies::read(held);
            tallies.add(&counted);
            serde_json::json!(tallies)
        };
        let written = self.store.count_canary(&running.version, add).await;
        if written.is_err() {
            self.count(|tallies| tallies.add(&counted));
        }
        written
    }
}

/// The place of a search from 0 to 1: the same in every process.
fn place(key: Uuid, query: &str) -> f64 {
    let mut hasher = DefaultHasher::new();
    (key, query).hash(&mut hasher);
    hasher.finish() as f64 / u64::MAX as f64
}

fn seen(answered: &Result<Answer, SearchError>, began: Instant) -> Seen {
    let took = began.elapsed();
    let Ok(answer) = answered else {
        let failed = true;
        return Seen {
            failed,
            took,
            ..Seen::default()
        };
    };
    let mut known = answer.items.iter().map(|item| item.relevance);
    Seen {
        failed: !answer.degraded.is_empty(),
        empty: answer.items.is_empty(),
        relevance: known.try_fold(0.0, |best, next| Some(f32::max(best, next?))),
        took,
    }
}
