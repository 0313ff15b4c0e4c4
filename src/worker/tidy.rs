//! Removes rows that have no use any more from Postgres, in batches.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use chrono::DateTime;
use uuid::Uuid;

use super::Shared;
use crate::store::{Lifecycle, OutboxPosition, StoreError};

/// How often the worker cleans up. It reads one page of states each time, so a million notes take three hours.
const EVERY: Duration = Duration::from_secs(60);

/// For how long it then reads outbox rows of versions that are being built. There may be one for every
/// note, and the expiry of notes waits meanwhile.
const COALESCE_FOR: Duration = Duration::from_secs(1);

/// Before every outbox row.
const FIRST: OutboxPosition = (DateTime::UNIX_EPOCH, Uuid::nil());

/// The progress of the worker that holds the upkeep lease.
#[derive(Debug, Default)]
pub struct Tidy {
    at: Option<Instant>,
    /// The note of the last state that it has read.
    upto: Uuid,
    /// The last outbox row that it has read of each version that is being built.
    coalesced: HashMap<String, OutboxPosition>,
    /// Whether it has reported an abandoned reindex.
    is_reported: bool,
}

impl Tidy {
    /// Cleans up once a minute.
    pub async fn clean_up_if_due(&mut self, shared: &Shared, now: Instant) {
        if self.at.is_some_and(|at| now - at < EVERY) {
            return;
        }
        self.at = Some(now);
        let tidied = async {
            self.enqueue_leftover_states(shared).await?;
            self.coalesce_building_versions(shared).await
        };
        if let Err(error) = tidied.await {
            tracing::debug!(%error, "cleanup failed");
        }
    }

    /// Enqueues notes that are deleted while their index state remains. Indexing them once
    /// more deletes their points and their state.
    async fn enqueue_leftover_states(&mut self, shared: &Shared) -> Result<(), StoreError> {
        let (store, version) = shared.store_and_version();
        let page = store.enqueue_gone(version, self.upto).await?;
        let (last, gone) = page.unwrap_or((Uuid::nil(), 0));
        self.upto = last;
        if gone > 0 {
            tracing::debug!(gone, "deleted notes with a leftover state enqueued");
            shared.wake.notify_one();
        }
        Ok(())
    }

    /// Keeps one outbox row per note for versions that are being built. Every change adds a
    /// row for each such version, and without a reindex no worker deletes them.
    async fn coalesce_building_versions(&mut self, shared: &Shared) -> Result<(), StoreError> {
        let (store, _) = shared.store_and_version();
        for known in store.versions().await? {
            if known.state != Lifecycle::Building {
                continue;
            }
            let version = known.version.name;
            let dropped = self.coalesce(shared, &version).await?;
            if dropped > 0 && !self.is_reported && store.running_job().await?.is_none() {
                self.is_reported = true;
                tracing::warn!(
                    version,
                    "version is being built but no reindex runs, its changes wait: resume with \
                     `elf reindex`, or drop it with `elf reindex drop`"
                );
            }
        }
        Ok(())
    }

    /// Goes on where it was last time, and begins again after the last row. Returns how many rows it
    /// has deleted.
    async fn coalesce(&mut self, shared: &Shared, version: &str) -> Result<i64, StoreError> {
        let (store, _) = shared.store_and_version();
        let began = Instant::now();
        let after = self.coalesced.entry(version.to_owned()).or_insert(FIRST);
        let mut dropped = 0;
        while began.elapsed() < COALESCE_FOR {
            let Some((last, gone)) = store.coalesce_building(version, *after).await? else {
                *after = FIRST;
                break;
            };
            dropped += gone;
            *after = last;
        }
        Ok(dropped)
    }
}
