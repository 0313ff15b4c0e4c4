//! What the index has to hold, as Postgres has it.

use std::collections::HashSet;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::{Limit, Store, StoreError, Version, schema};
use crate::note::{Labels, TextHash};

/// A chunk of a live note: what a point is made of.
#[derive(Debug, Clone, PartialEq)]
pub struct LiveChunk {
    /// The chunk's id and its point's.
    pub chunk_id: Uuid,
    /// The note it is of.
    pub note_id: Uuid,
    /// 0 for the first chunk of the note.
    pub chunk_index: u32,
    /// Byte offset of the first byte in the note's text.
    pub start: usize,
    /// Byte offset behind the last byte.
    pub end: usize,
    /// The lease token under which it was written.
    pub revision: i64,
    /// Its text, where it was asked for.
    pub text: Option<String>,
    /// Whether its vector is there.
    pub has_vector: bool,
    /// The vector, where it was asked for and is there.
    pub vector: Option<Vec<f32>>,
    /// The note's status.
    pub status: String,
    /// When the note stops being live.
    pub expires_at: Option<DateTime<Utc>>,
    /// What a search filters on.
    pub labels: Labels,
}

/// Something about a live note in Postgres that does not follow from its text.
#[derive(Debug, Clone, PartialEq)]
pub struct NoteProblem {
    /// The note.
    pub note_id: Uuid,
    /// What is wrong with it, in words.
    pub problem: String,
}

/// How much of a chunk is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// What its payload is made of.
    Payload,
    /// The vector too.
    Vectors,
    /// Vector and text: a whole point.
    Whole,
}

/// Makes a [`LiveChunk`] of a row of `chunk_page.sql` or `chunks_by_id.sql`: their
/// types differ, their columns do not.
macro_rules! live_chunk {
    ($row:expr, $text:expr) => {{
        let row = $row;
        LiveChunk {
            chunk_id: row.chunk_id,
            note_id: row.note_id,
            chunk_index: row.chunk_index as u32,
            start: row.start_offset as usize,
            end: row.end_offset as usize,
            revision: row.revision,
            text: $text(row.text),
            has_vector: row.has_vector,
            vector: row.vec.map(|vec| vec.to_vec()),
            status: row.status,
            expires_at: row.expires_at,
            labels: Labels {
                tenant_id: row.tenant_id,
                project_id: row.project_id,
                agent_id: row.agent_id,
                scope: row.scope,
                kind: row.kind,
                key: row.key,
                importance: row.importance,
                confidence: row.confidence,
                updated_at: row.updated_at,
            },
        }
    }};
}

impl Store {
    /// Up to `limit` chunks of live notes in ascending order of their ids, of those
    /// above `after` and not above `upto`. Fewer than `limit` means the end, but for
    /// [`Depth::Whole`]: with their texts they have about `max_bytes` at most, and at the
    /// end there is none.
    pub async fn live_chunks(
        &self,
        version: &str,
        after: Uuid,
        upto: Uuid,
        limit: usize,
        max_bytes: usize,
        depth: Depth,
    ) -> Result<Vec<LiveChunk>, StoreError> {
        let page = sqlx::query_file!(
            "sql/queries/chunk_page.sql",
            version,
            after,
            upto,
            limit as i64,
            depth == Depth::Whole,
            depth == Depth::Vectors,
            max_bytes as i64
        );
        let rows = self
            .answered(Limit::Statement, self.read_page(page))
            .await?;
        Ok(rows
            .into_iter()
            .map(|row| live_chunk!(row, std::convert::identity))
            .collect())
    }

    /// Those of `chunk_ids` that belong to live notes, whole.
    pub async fn live_chunks_by_id(
        &self,
        version: &str,
        chunk_ids: &[Uuid],
    ) -> Result<Vec<LiveChunk>, StoreError> {
        let chunks = sqlx::query_file!("sql/queries/chunks_by_id.sql", version, chunk_ids)
            .fetch_all(&self.pool);
        let rows = self.answered(Limit::Statement, chunks).await?;
        Ok(rows.into_iter().map(|row| live_chunk!(row, Some)).collect())
    }

    /// How many points there have to be: chunks of live notes that have a vector.
    pub async fn count_points(&self, version: &str) -> Result<u64, StoreError> {
        let work = async {
            let count = sqlx::query_file_scalar!("sql/queries/count_points.sql", version)
                .fetch_one(&self.pool)
                .await?;
            Ok::<_, StoreError>(count as u64)
        };
        self.answered(Limit::EveryNote, work).await
    }

    /// Those of `chunk_ids` that are not chunks of a live note any more.
    pub async fn gone_chunks(
        &self,
        version: &str,
        chunk_ids: &[Uuid],
    ) -> Result<Vec<Uuid>, StoreError> {
        let gone = sqlx::query_file_scalar!("sql/queries/gone_chunks.sql", version, chunk_ids)
            .fetch_all(&self.pool);
        self.answered(Limit::Statement, gone).await
    }

    /// Those of `note_ids` that are on their way: they have an outbox row that is not
    /// dead, are leased, or have expired and are not enqueued yet.
    pub async fn busy_notes(
        &self,
        version: &str,
        note_ids: &[Uuid],
    ) -> Result<HashSet<Uuid>, StoreError> {
        let busy = sqlx::query_file_scalar!("sql/queries/busy_notes.sql", version, note_ids)
            .fetch_all(&self.pool);
        Ok(self
            .answered(Limit::Statement, busy)
            .await?
            .into_iter()
            .collect())
    }

    /// Looks at the next `limit` live notes behind `after` with about `max_bytes` of text
    /// together, at least one, or at the part `sample` (0 to 1) of them. Returns the last of
    /// them and how many it looked at, `None` at the end, and what is wrong with which.
    pub async fn note_problems(
        &self,
        version: &str,
        dim: usize,
        after: Uuid,
        limit: usize,
        max_bytes: usize,
        sample: f64,
    ) -> Result<(Option<(Uuid, u64)>, Vec<NoteProblem>), StoreError> {
        let page = sqlx::query_file!(
            "sql/queries/note_problems.sql",
            version,
            dim as i32,
            after,
            limit as i64,
            sample,
            max_bytes as i64
        );
        let rows = self.answered(Limit::Batch, self.read_page(page)).await?;
        let looked_at = rows.last().map(|row| (row.note_id, rows.len() as u64));
        let problems = rows.into_iter().filter_map(|row| {
            let problem = row.problem?;
            Some(NoteProblem {
                note_id: row.note_id,
                problem,
            })
        });
        Ok((looked_at, problems.collect()))
    }

    /// Has every token from now on be above `revision`. Returns the last that was given
    /// out.
    pub async fn raise_tokens(&self, revision: i64) -> Result<i64, StoreError> {
        let work = async {
            // One at a time: of two that leap, the second would set the sequence back.
            let mut tx = self.begin().await?;
            schema::lock_setup(&mut tx).await?;
            let last = sqlx::query_file_scalar!("sql/queries/raise_tokens.sql", revision)
                .fetch_one(&mut *tx)
                .await?;
            tx.commit().await?;
            Ok::<_, StoreError>(last)
        };
        self.answered(Limit::Statement, work).await
    }

    /// The last token that was given out; 0 when none was.
    pub async fn last_token(&self) -> Result<i64, StoreError> {
        let last = sqlx::query_file_scalar!("sql/queries/last_token.sql").fetch_one(&self.pool);
        self.answered(Limit::Statement, last).await
    }

    /// Those of `hashes` whose text has a vector that serves `version`, which need not
    /// be registered.
    pub async fn known_hashes(
        &self,
        version: &Version,
        hashes: &[TextHash],
    ) -> Result<Vec<TextHash>, StoreError> {
        let hashes: Vec<&[u8]> = hashes.iter().map(|h| &h.0[..]).collect();
        let rows = sqlx::query_file_scalar!(
            "sql/queries/known_hashes.sql",
            &version.settings,
            &hashes as _
        )
        .fetch_all(&self.pool)
        .await?;
        let hash = |row: Vec<u8>| row.try_into().ok().map(TextHash);
        Ok(rows.into_iter().filter_map(hash).collect())
    }
}
