//! The failed attempt of a note: what rejected it, and whether the worker retries it.

use std::time::Duration;

use super::{Claimed, Store, StoreError};
use crate::note::TextHash;

/// Why and how often a note failed.
#[derive(Debug, Clone, Copy)]
pub struct Failure<'a> {
    /// The reason that `elf dead show` prints. It never holds the text.
    pub reason: &'a str,
    /// What rejected the note.
    pub by: FailedBy,
    /// The text that failed.
    pub text: TextHash,
    /// How often this text has failed in a row, this time included.
    pub failures: u32,
    /// Whether the note is retried.
    pub retry: Retry,
    /// The number of lost claims to store for the note.
    pub lost_claims: u32,
    /// How long no worker claims the note: the index may still apply an upsert of it.
    pub keep_leased: Duration,
}

/// What rejected a note.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailedBy {
    /// The text itself: it cannot be chunked, or has no tokens.
    Text,
    /// The embedding provider.
    Provider,
    /// Postgres.
    Postgres,
    /// The vector engine.
    Index,
    /// The note itself, probably: each process that worked on it died.
    Process,
}

impl FailedBy {
    /// The name in Postgres and in the metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Provider => "provider",
            Self::Postgres => "postgres",
            Self::Index => "index",
            Self::Process => "process",
        }
    }
}

/// What happens to a note that failed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Retry {
    /// The worker retries the note after this delay.
    After(Duration),
    /// The note is dead-lettered.
    Never,
}

impl Store {
    /// Counts a failed attempt of a note and ends its lease. Returns whether the lease was still
    /// held; if not, nothing is counted.
    pub async fn fail(
        &self,
        version: &str,
        token: i64,
        note: &Claimed,
        failure: Failure<'_>,
    ) -> Result<bool, StoreError> {
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
            // Postgres takes no U+0000. A reason may hold one of another program.
            failure.reason.replace('\0', ""),
            delay_secs,
            failure.failures as i32,
            &failure.text.0[..],
            failure.by.as_str(),
            failure.lost_claims as i32,
            failure.keep_leased.as_secs_f64()
        );
        self.asked("fail", counted.fetch_one(&self.pool)).await
    }
}
