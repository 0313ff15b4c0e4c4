//! What `elf status` and `elf dead` show.

use chrono::{DateTime, Utc};
use serde::Serialize;
use uuid::Uuid;

use super::transaction::Transaction;
use super::write::{COMMAND, affected};
use super::{Limit, Store, StoreError};

/// Outbox rows by what they wait for.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OutboxCounts {
    /// Of a note that no worker has leased.
    pub pending: i64,
    /// Of a note that a worker has leased.
    pub leased: i64,
    /// Waiting for a retry.
    pub failed: i64,
    /// Dead-lettered: see `elf dead`.
    pub dead: i64,
    /// Those of the pending and failed ones whose note no worker claims for a moment: an application holds its row,
    /// Postgres did not take it, or the index did not answer.
    pub paused: i64,
    /// How long the oldest row that is due has waited, leased or not; null when there is none.
    /// A row that an application scheduled for later waits since it was due.
    pub oldest_pending_secs: Option<f64>,
}

/// Notes and chunks under one version.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NoteCounts {
    /// Live notes.
    pub live: i64,
    /// Those of them that have been indexed.
    pub indexed: i64,
    /// Chunks of live notes.
    pub chunks: i64,
}

/// An outbox row with the status `DEAD`.
#[derive(Debug, Clone, Serialize)]
#[expect(
    missing_docs,
    reason = "the columns of the same names say what they are"
)]
pub struct DeadLetter {
    pub outbox_id: Uuid,
    pub note_id: Uuid,
    pub op: String,
    /// Null means the active version.
    pub embedding_version: Option<String>,
    pub attempts: i32,
    /// What rejected the note: `text`, `provider`, `postgres`, `index`,
    /// `process` or `unknown`.
    pub reason: String,
    pub last_error: Option<String>,
    pub created_at: DateTime<Utc>,
    /// When it was dead-lettered.
    pub died_at: DateTime<Utc>,
    pub key: Option<String>,
    pub title: Option<String>,
    /// The first 500 characters of the note, if it is still there.
    pub text_preview: Option<String>,
    pub text_bytes: Option<i32>,
}

/// The outbox as a table.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct OutboxTable {
    /// Row versions that a vacuum will free.
    pub dead_tuples: i64,
    /// Bytes on disk, with the indexes.
    pub size_bytes: i64,
}

impl Store {
    /// Counts the outbox rows of one version, or of all versions that are not retired.
    pub async fn outbox_counts(&self, version: Option<&str>) -> Result<OutboxCounts, StoreError> {
        let counts = sqlx::query_file_as!(OutboxCounts, "sql/queries/count_outbox.sql", version);
        // An outbox may have a row for every note.
        let counted = self.read_one(Limit::Upkeep, &[], counts);
        self.measured_within(Limit::Upkeep, "observe", counted)
            .await
    }

    /// The size and the dead tuples of the outbox table.
    pub async fn outbox_table(&self) -> Result<OutboxTable, StoreError> {
        let table = sqlx::query_file_as!(OutboxTable, "sql/queries/outbox_table.sql");
        self.asked("observe", table.fetch_one(&self.pool)).await
    }

    /// Counts dead letters by what rejected them.
    pub async fn dead_reasons(&self) -> Result<Vec<(String, i64)>, StoreError> {
        let rows = sqlx::query_file!("sql/queries/dead_reasons.sql").fetch_all(&self.pool);
        let rows = self.asked("observe", rows).await?;
        Ok(rows.into_iter().map(|r| (r.reason, r.letters)).collect())
    }

    /// Counts live notes and their chunks.
    pub async fn note_counts(&self, version: &str) -> Result<NoteCounts, StoreError> {
        let counts = sqlx::query_file_as!(NoteCounts, "sql/queries/count_notes.sql", version);
        self.measured_within(Limit::EveryNote, "observe", self.count(counts))
            .await
    }

    /// The latest dead letters, `limit` at most. A text that Postgres cannot read has no preview.
    pub async fn dead_letters(&self, limit: i64) -> Result<Vec<DeadLetter>, StoreError> {
        match self.read_dead(None, Some(limit), true).await {
            Err(StoreError::Unreadable(_)) => {}
            letters => return letters,
        }
        let mut letters = self.read_dead(None, Some(limit), false).await?;
        for letter in &mut letters {
            let alone = self.dead_letter(letter.outbox_id).await?;
            letter.text_preview = alone
                .into_iter()
                .next()
                .and_then(|alone| alone.text_preview);
        }
        Ok(letters)
    }

    /// The dead letters with this outbox id or note id.
    pub async fn dead_letter(&self, id: Uuid) -> Result<Vec<DeadLetter>, StoreError> {
        match self.read_dead(Some(id), None, true).await {
            Err(StoreError::Unreadable(_)) => self.read_dead(Some(id), None, false).await,
            letters => letters,
        }
    }

    async fn read_dead(
        &self,
        id: Option<Uuid>,
        limit: Option<i64>,
        with_texts: bool,
    ) -> Result<Vec<DeadLetter>, StoreError> {
        let letters = sqlx::query_file_as!(
            DeadLetter,
            "sql/queries/dead_letters.sql",
            id,
            limit,
            with_texts
        );
        Ok(letters.fetch_all(&self.pool).await?)
    }

    /// Makes dead letters due again: all, or those with these outbox or note ids. Returns how
    /// many.
    pub async fn retry_dead(&self, ids: Option<&[Uuid]>) -> Result<u64, StoreError> {
        let work = async {
            let mut tx = Transaction::begin(&self.pool, COMMAND).await?;
            let retried = sqlx::query_file_scalar!("sql/queries/dead_retry.sql", ids)
                .fetch_one(&mut *tx)
                .await?;
            sqlx::query("notify elf_outbox").execute(&mut *tx).await?;
            Ok((tx, retried as u64))
        };
        self.command("upkeep", work).await
    }

    /// Deletes dead letters: all, or those with these outbox or note ids. Returns how many.
    pub async fn purge_dead(&self, ids: Option<&[Uuid]>) -> Result<u64, StoreError> {
        let purge = sqlx::query_file!("sql/queries/dead_purge.sql", ids);
        let purged = affected(&self.pool, COMMAND, purge);
        self.command("upkeep", purged).await
    }
}
