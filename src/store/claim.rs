//! Leases: who indexes a note, under which token, and how that ends.

use std::time::Duration;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::{Store, StoreError};
use crate::note::TextHash;

/// A batch of notes leased to one worker under one token.
#[derive(Debug, Clone)]
pub struct Claim {
    /// The lease token: higher than that of any claim of these notes before. It
    /// is the revision of the points written under it.
    pub token: i64,
    /// The notes, each once.
    pub notes: Vec<Claimed>,
}

/// A leased note and the outbox rows that its convergence settles.
#[derive(Debug, Clone)]
pub struct Claimed {
    /// The note.
    pub note_id: Uuid,
    /// The rows that were committed when the claim was made, the newest last.
    pub outbox_ids: Vec<Uuid>,
    /// The text that failed last, and how often in a row; `None` when the last
    /// attempt was no failure.
    pub failed: Option<(TextHash, u32)>,
    /// Since when the oldest row waits: when it was written, or when it was due if an
    /// application scheduled it for later.
    pub oldest: DateTime<Utc>,
}

/// Why and how often a note failed.
#[derive(Debug, Clone, Copy)]
pub struct Failure<'a> {
    /// For `elf dead show`. Never holds the text.
    pub reason: &'a str,
    /// What rejected it.
    pub by: FailedBy,
    /// The text that failed.
    pub text: TextHash,
    /// How often it has, this time included.
    pub failures: u32,
    /// What happens now.
    pub retry: Retry,
}

/// What rejected a note.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailedBy {
    /// The text itself: it cannot be cut, or nothing is left of it.
    Text,
    /// The embedding provider.
    Provider,
    /// Postgres.
    Postgres,
    /// The vector engine.
    Index,
}

impl FailedBy {
    /// As Postgres and the metrics have it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Provider => "provider",
            Self::Postgres => "postgres",
            Self::Index => "index",
        }
    }
}

/// What happens to a note that failed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Retry {
    /// Try again after this long.
    After(Duration),
    /// Never on its own: a dead letter.
    Never,
}

/// Host and process, for the one who wonders who holds a lease.
pub fn holder() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!(
        "{}:{}:{:04x}",
        host.trim(),
        std::process::id(),
        rand::random::<u16>()
    )
}

impl Claim {
    /// The ids of the claimed notes.
    pub fn note_ids(&self) -> Vec<Uuid> {
        self.notes.iter().map(|n| n.note_id).collect()
    }
}

impl Store {
    /// Leases up to `max_notes` due notes of about `max_bytes` of text together,
    /// oldest first. `None` when nothing is due that nobody else holds.
    pub async fn claim(
        &self,
        version: &str,
        holder: &str,
        lease: Duration,
        max_notes: usize,
        max_bytes: usize,
    ) -> Result<Option<Claim>, StoreError> {
        let work = async {
            let rows = sqlx::query_file!(
                "sql/queries/claim.sql",
                version,
                holder,
                lease.as_secs_f64(),
                max_notes as i32,
                max_bytes as i64
            )
            .fetch_all(&self.pool)
            .await?;
            let Some(token) = rows.first().map(|row| row.lease_token) else {
                return Ok(None);
            };
            let notes = rows
                .into_iter()
                .map(|row| Claimed {
                    note_id: row.note_id,
                    outbox_ids: row.outbox_ids,
                    failed: row.failed_sha256.and_then(|hash| {
                        Some((TextHash(hash.try_into().ok()?), row.failures as u32))
                    }),
                    oldest: row.oldest,
                })
                .collect();
            Ok(Some(Claim { token, notes }))
        };
        self.measured("claim", work).await
    }

    /// Has the leases on `notes` end after `lease` from now.
    pub async fn extend(
        &self,
        version: &str,
        token: i64,
        notes: &[Uuid],
        lease: Duration,
    ) -> Result<(), StoreError> {
        let work = async {
            let secs = lease.as_secs_f64();
            sqlx::query_file!("sql/queries/extend_leases.sql", version, token, notes, secs)
                .execute(&self.pool)
                .await?;
            Ok(())
        };
        self.measured("extend", work).await
    }

    /// Gives leases back: the notes are due as before, no attempt is spent.
    pub async fn release(
        &self,
        version: &str,
        token: i64,
        notes: &[Uuid],
    ) -> Result<(), StoreError> {
        let work = async {
            sqlx::query_file!("sql/queries/release.sql", version, token, notes)
                .execute(&self.pool)
                .await?;
            Ok(())
        };
        self.measured("release", work).await
    }

    /// Settles the claimed rows of `notes` and ends their leases. Returns the
    /// notes whose lease was still held; of the others nothing is settled.
    pub async fn ack(
        &self,
        version: &str,
        token: i64,
        notes: &[&Claimed],
        keep_done: bool,
    ) -> Result<Vec<Uuid>, StoreError> {
        let work = async {
            let note_ids: Vec<Uuid> = notes.iter().map(|n| n.note_id).collect();
            let (mut outbox_ids, mut owners) = (Vec::new(), Vec::new());
            for note in notes {
                outbox_ids.extend_from_slice(&note.outbox_ids);
                owners.resize(outbox_ids.len(), note.note_id);
            }
            let held = sqlx::query_file_scalar!(
                "sql/queries/ack.sql",
                version,
                token,
                &note_ids,
                &outbox_ids,
                &owners,
                keep_done
            )
            .fetch_all(&self.pool)
            .await?;
            Ok(held)
        };
        self.measured("ack", work).await
    }

    /// Drops the state of acked notes that are gone from `memory_notes`.
    pub async fn forget(
        &self,
        version: &str,
        token: i64,
        notes: &[Uuid],
    ) -> Result<(), StoreError> {
        let work = async {
            sqlx::query_file!("sql/queries/forget_states.sql", version, token, notes)
                .execute(&self.pool)
                .await?;
            Ok(())
        };
        self.measured("ack", work).await
    }

    /// Counts a failure of a note and ends its lease. Returns whether the lease
    /// was still held: if not, nothing is counted.
    pub async fn fail(
        &self,
        version: &str,
        token: i64,
        note: &Claimed,
        failure: Failure<'_>,
    ) -> Result<bool, StoreError> {
        let work = async {
            let delay_secs = match failure.retry {
                Retry::After(delay) => Some(delay.as_secs_f64()),
                Retry::Never => None,
            };
            let counted = sqlx::query_file_scalar!(
                "sql/queries/fail_note.sql",
                version,
                token,
                note.note_id,
                &note.outbox_ids,
                failure.reason,
                delay_secs,
                failure.failures as i32,
                &failure.text.0[..],
                failure.by.as_str()
            )
            .fetch_one(&self.pool)
            .await?;
            Ok(counted)
        };
        self.measured("fail", work).await
    }

    /// Puts notes into the outbox again, whether they have a row or not.
    pub async fn requeue(&self, version: &str, notes: &[Uuid]) -> Result<(), StoreError> {
        let work = async {
            sqlx::query_file!("sql/queries/requeue.sql", version, notes)
                .execute(&self.pool)
                .await?;
            Ok(())
        };
        self.measured("release", work).await
    }

    /// Puts notes into the outbox whose `expires_at` has passed while their
    /// points are still there. `look_back` of `None` looks at all of them.
    pub async fn expire(
        &self,
        version: &str,
        look_back: Option<Duration>,
    ) -> Result<u64, StoreError> {
        // To look at all time takes its time.
        let times = if look_back.is_none() { 15 } else { 1 };
        let work = async {
            let secs = look_back.map(|d| d.as_secs_f64());
            let done = sqlx::query_file!("sql/queries/expire.sql", version, secs)
                .execute(&self.pool)
                .await?;
            Ok(done.rows_affected())
        };
        self.measured_within(times, "sweep", work).await
    }

    /// Deletes done rows that have been kept for `retention`.
    pub async fn drop_done(&self, retention: Duration) -> Result<u64, StoreError> {
        let work = async {
            let done = sqlx::query_file!("sql/queries/drop_done.sql", retention.as_secs_f64())
                .execute(&self.pool)
                .await?;
            Ok(done.rows_affected())
        };
        self.measured("sweep", work).await
    }
}
