//! What piles up in Postgres for no one, removed in batches.

use std::time::{Duration, Instant};

use uuid::Uuid;

use super::{Shared, WorkerContext};
use crate::registry::IndexContext;
use crate::store::{StoreError, VersionState};

/// A page of states each time: a million notes are looked at in three hours.
const EVERY: Duration = Duration::from_secs(60);

/// How far the worker with the upkeep is.
#[derive(Debug, Default)]
pub struct Tidy {
    at: Option<Instant>,
    /// States up to here have been looked at.
    upto: Uuid,
    /// The abandoned reindex has been reported.
    told: bool,
}

impl Tidy {
    /// Cleans up once a minute.
    pub async fn keep(&mut self, shared: &Shared, now: Instant) {
        if self.at.is_some_and(|at| now - at < EVERY) {
            return;
        }
        self.at = Some(now);
        let tidied = async {
            self.states(shared).await?;
            self.abandoned(shared).await
        };
        if let Err(error) = tidied.await {
            tracing::debug!(%error, "could not clean up");
        }
    }

    /// A note that is gone while its state is still there is enqueued: indexed once more,
    /// its points and its state go.
    async fn states(&mut self, shared: &Shared) -> Result<(), StoreError> {
        let WorkerContext {
            stores: IndexContext { store, .. },
            version,
            ..
        } = &shared.context;
        let page = store.enqueue_gone(&version.name, self.upto).await?;
        let (last, gone) = page.unwrap_or((Uuid::nil(), 0));
        self.upto = last;
        if gone > 0 {
            tracing::debug!(gone, "notes enqueued whose state outlived them");
            shared.wake.notify_one();
        }
        Ok(())
    }

    /// Every change adds a row for each version that is being built. Where no worker takes
    /// them, one row a note is enough.
    async fn abandoned(&mut self, shared: &Shared) -> Result<(), StoreError> {
        let store = &shared.context.stores.store;
        for known in store.versions().await? {
            if known.state != VersionState::Building {
                continue;
            }
            let version = known.version.name;
            let dropped = store.coalesce_building(&version).await?;
            if dropped > 0 && !self.told && store.running_job().await?.is_none() {
                self.told = true;
                tracing::warn!(
                    version,
                    "changes wait for a version that is being built while no reindex runs: go on \
                     with `elf reindex`, or free it with `elf reindex drop`"
                );
            }
        }
        Ok(())
    }
}
