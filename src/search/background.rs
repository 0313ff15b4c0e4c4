//! The background of relevance, measured from the vectors in Postgres and kept for a while.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use moka::sync::Cache;
use tokio::sync::Mutex;
use uuid::Uuid;

use super::relevance::Background;
use crate::store::Store;

/// Chunks that are compared with each other. With more, the mean moves by less than a tenth of a deviation.
const SAMPLE: u128 = 128;

/// How long a background stands: it changes slowly.
const KEPT: Duration = Duration::from_secs(600);

/// How long it stands that there are too few notes.
const KEPT_NONE: Duration = Duration::from_secs(5);

/// A search waits no longer: on a slow disk it does without, and the next one finds the pages in memory.
const LIMIT: Duration = Duration::from_secs(1);

/// Labels whose chunks are counted at most: those of so many tenants.
const MAX_COUNTS: u64 = 10_000;

/// What searches are asked for: `tenant_id` and other labels.
type Labels = BTreeMap<String, String>;

/// The background of the version that is searched.
pub struct Backgrounds {
    measured: Mutex<Option<Measured>>,
    /// How many chunks the notes with some labels have.
    counts: Cache<Labels, u64>,
}

#[derive(Clone, Copy)]
struct Measured {
    at: Instant,
    background: Option<Background>,
}

impl Backgrounds {
    pub fn new() -> Self {
        let counts = Cache::builder().max_capacity(MAX_COUNTS);
        Self {
            measured: Mutex::default(),
            counts: counts.time_to_live(KEPT).build(),
        }
    }

    /// How many chunks the notes with these labels have, about; `count` counts them in the index.
    pub async fn chunks<E>(
        &self,
        labels: &Labels,
        count: impl Future<Output = Result<u64, E>>,
    ) -> Option<u64> {
        if let Some(known) = self.counts.get(labels) {
            return Some(known);
        }
        let counted = tokio::time::timeout(LIMIT, count).await.ok()?.ok()?;
        self.counts.insert(labels.clone(), counted);
        Some(counted)
    }

    /// The background; `None` if there are too few notes, or if Postgres does not answer.
    pub async fn get(&self, store: &Store, version: &str) -> Option<Background> {
        let mut known = self.measured.lock().await;
        if let Some(measured) = known.filter(Measured::stands) {
            return measured.background;
        }
        let background = measure(store, version).await;
        *known = Some(Measured {
            at: Instant::now(),
            background,
        });
        background
    }
}

impl Measured {
    fn stands(&self) -> bool {
        let kept = match self.background {
            Some(_) => KEPT,
            None => KEPT_NONE,
        };
        self.at.elapsed() < kept
    }
}

async fn measure(store: &Store, version: &str) -> Option<Background> {
    // The ids of chunks are spread evenly, as hashes are.
    let ids: Vec<Uuid> = (0..SAMPLE)
        .map(|i| Uuid::from_u128(i * (u128::MAX / SAMPLE)))
        .collect();
    match tokio::time::timeout(LIMIT, store.spread_vectors(version, &ids)).await {
        Ok(Ok(vectors)) => Background::of(&vectors),
        Ok(Err(error)) => {
            tracing::warn!(%error, "background of relevance not measured");
            None
        }
        Err(_) => {
            tracing::warn!(limit = ?LIMIT, "background of relevance not measured in time");
            None
        }
    }
}
