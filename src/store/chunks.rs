//! Reading the chunks of live notes: the points that the index has to have.

use std::collections::HashSet;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::unreadable::read_each;
use super::{Limit, Store, StoreError, Version};
use crate::note::{Labels, TextHash};

/// A chunk of a live note, from which ELF makes a point.
#[derive(Debug, Clone, PartialEq)]
pub struct LiveChunk {
    /// The id of the chunk and of its point.
    pub chunk_id: Uuid,
    /// The note it belongs to.
    pub note_id: Uuid,
    /// 0 for the first chunk of the note.
    pub chunk_index: u32,
    /// Byte offset of the first byte in the note's text.
    pub start: usize,
    /// Byte offset behind the last byte.
    pub end: usize,
    /// The lease token under which it was written.
    pub revision: i64,
    /// What is embedded before its text, only with [`Depth::Whole`].
    pub lead: String,
    /// Its text, only with [`Depth::Whole`].
    pub text: Option<String>,
    /// Whether Postgres has its vector.
    pub has_vector: bool,
    /// Whether it is found by keyword alone, until the provider can make its vector.
    pub awaits_vector: bool,
    /// The vector, not with [`Depth::Payload`].
    pub vector: Option<Vec<f32>>,
    /// `memory_notes.status`, as the application wrote it.
    pub status: String,
    /// When the note stops being live.
    pub expires_at: Option<DateTime<Utc>>,
    /// The labels that a search can filter on.
    pub labels: Labels,
    /// What Postgres says if it cannot read the text or the vector.
    pub unreadable: Option<String>,
}

/// An inconsistency of a live note: something in Postgres that does not follow from its text.
#[derive(Debug, Clone, PartialEq)]
pub struct NoteProblem {
    /// Its id in `memory_notes`.
    pub note_id: Uuid,
    /// The problem, in words.
    pub problem: String,
    /// Whether a worker mends it by indexing the note again.
    pub is_mendable: bool,
}

/// How much of a chunk to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// The fields of its payload.
    Payload,
    /// The payload and the vector.
    Vectors,
    /// The payload, the vector and the text: a whole point.
    Whole,
}

/// Makes a [`LiveChunk`] from a row of `chunk_page.sql` or `chunks_by_id.sql`. sqlx gives each
/// query its own row type, so a function cannot take both.
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
            lead: row.lead.unwrap_or_default(),
            text: $text(row.text),
            has_vector: row.has_vector,
            awaits_vector: row.awaits_vector,
            vector: row.vec.map(Vec::from),
            status: row.status,
            expires_at: row.expires_at,
            labels: Labels {
                tenant_id: row.tenant_id,
                project_id: row.project_id,
                agent_id: row.agent_id,
                scope: row.scope,
                kind: row.kind,
                key: row.key,
                source: row.source,
                importance: row.importance,
                confidence: row.confidence,
                updated_at: row.updated_at,
                fields: crate::note::fields(row.metadata),
            },
            unreadable: None,
        }
    }};
}

impl LiveChunk {
    /// Whether the index has to have its point.
    pub fn has_point(&self) -> bool {
        self.has_vector || self.awaits_vector
    }
}

impl Store {
    /// Up to `limit` chunks of live notes with ids above `after` and up to `upto`, in order of
    /// their ids. Fewer than `limit` means the end. [`Depth::Whole`] is an exception: it stops
    /// after about `max_bytes` of text too, and only an empty page means the end. A chunk that Postgres
    /// cannot read as a whole comes with its payload alone.
    pub async fn live_chunks(
        &self,
        version: &str,
        after: Uuid,
        upto: Uuid,
        limit: usize,
        max_bytes: usize,
        depth: Depth,
    ) -> Result<Vec<LiveChunk>, StoreError> {
        match self
            .chunk_page(version, after, upto, limit, max_bytes, depth)
            .await
        {
            Err(StoreError::Unreadable(_)) if depth != Depth::Payload => {}
            page => return page,
        }
        let page = self
            .chunk_page(version, after, upto, limit, 0, Depth::Payload)
            .await?;
        let ids: Vec<Uuid> = page.iter().map(|chunk| chunk.chunk_id).collect();
        self.live_chunks_by_id(version, &ids).await
    }

    async fn chunk_page(
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
        let rows = self.answered(Limit::Statement, self.page(page)).await?;
        Ok(rows
            .into_iter()
            .map(|row| live_chunk!(row, std::convert::identity))
            .collect())
    }

    /// Those of `chunk_ids` that belong to live notes, with vector and text, in order of their ids. A chunk
    /// that Postgres cannot read as a whole comes with its payload alone.
    pub async fn live_chunks_by_id(
        &self,
        version: &str,
        chunk_ids: &[Uuid],
    ) -> Result<Vec<LiveChunk>, StoreError> {
        let (rows, unreadable) = read_each(chunk_ids, |ids| {
            let rows = sqlx::query_file!("sql/queries/chunks_by_id.sql", version, ids);
            self.answered(Limit::Statement, rows.fetch_all(&self.pool))
        })
        .await?;
        let mut chunks: Vec<LiveChunk> =
            rows.into_iter().map(|row| live_chunk!(row, Some)).collect();
        for (id, reason) in unreadable {
            let before = Uuid::from_u128(id.as_u128().saturating_sub(1));
            let alone = self
                .chunk_page(version, before, *id, 1, 0, Depth::Payload)
                .await?;
            chunks.extend(alone.into_iter().map(|chunk| LiveChunk {
                unreadable: Some(reason.clone()),
                ..chunk
            }));
        }
        chunks.sort_unstable_by_key(|chunk| chunk.chunk_id);
        Ok(chunks)
    }

    /// Deletes those of `chunk_ids` whose text or vector Postgres cannot read, and the pooled vectors of their
    /// notes, which it returns. A worker that indexes these notes makes all of it again.
    pub async fn drop_unreadable(
        &self,
        version: &str,
        chunk_ids: &[Uuid],
    ) -> Result<Vec<Uuid>, StoreError> {
        let chunks = self.live_chunks_by_id(version, chunk_ids).await?;
        let lost = chunks.iter().filter(|chunk| chunk.unreadable.is_some());
        let (lost, mut notes): (Vec<Uuid>, Vec<Uuid>) =
            lost.map(|chunk| (chunk.chunk_id, chunk.note_id)).unzip();
        notes.sort_unstable();
        notes.dedup();
        let work = async {
            let mut tx = self.begin().await?;
            for (drop, ids) in [
                (
                    "delete from note_embeddings where embedding_version = $1 and note_id = any ($2)",
                    &notes,
                ),
                (
                    "delete from memory_note_chunks where embedding_version = $1 and chunk_id = any ($2)",
                    &lost,
                ),
            ] {
                sqlx::query(drop)
                    .bind(version)
                    .bind(ids)
                    .execute(&mut *tx)
                    .await?;
            }
            tx.commit().await?;
            Ok::<_, StoreError>(())
        };
        self.answered(Limit::Batch, work).await?;
        Ok(notes)
    }

    /// The chunks of a note.
    pub async fn chunks_of(&self, version: &str, note: Uuid) -> Result<Vec<Uuid>, StoreError> {
        let chunks =
            "select chunk_id from memory_note_chunks where note_id = $1 and embedding_version = $2";
        let chunks = sqlx::query_scalar(chunks)
            .bind(note)
            .bind(version)
            .fetch_all(&self.keyed);
        self.answered(Limit::Statement, chunks).await
    }

    pub(super) async fn next_live_note(&self, after: Uuid) -> Result<Option<Uuid>, StoreError> {
        let next = "select note_id from memory_notes
                     where note_id > $1 and status = 'active' and (expires_at is null or expires_at > now())
                     order by note_id limit 1";
        let next = sqlx::query_scalar(next)
            .bind(after)
            .fetch_optional(&self.keyed);
        self.answered(Limit::Statement, next).await
    }

    /// How many points the index has to have: the chunks of live notes that have a vector or
    /// await it.
    pub async fn count_points(&self, version: &str) -> Result<u64, StoreError> {
        let count = sqlx::query_file!("sql/queries/count_points.sql", version);
        let count = self.answered(Limit::EveryNote, self.count(count)).await?;
        Ok(count.count as u64)
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

    /// Those of `note_ids` that a worker will index or has dead-lettered: they have an outbox row,
    /// are leased, or have expired and are not enqueued yet.
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

    /// Checks the next `limit` live notes after `after`, at least one, with about `max_bytes` of
    /// text together. With a `sample` below 1, it checks that fraction of the notes. Returns the
    /// last checked note and their number (`None` at the end), and the problems found. A note that Postgres
    /// cannot read is a problem.
    pub async fn note_problems(
        &self,
        version: &str,
        dim: usize,
        after: Uuid,
        limit: usize,
        max_bytes: usize,
        sample: f64,
    ) -> Result<(Option<(Uuid, u64)>, Vec<NoteProblem>), StoreError> {
        let mut limit = limit;
        // Up to a note that cannot be read, and then that note alone.
        while limit > 1 {
            match self
                .problem_page(version, dim, after, limit, max_bytes, sample)
                .await
            {
                Err(StoreError::Unreadable(_)) => limit /= 2,
                page => return page,
            }
        }
        let reason = match self
            .problem_page(version, dim, after, 1, max_bytes, 1.0)
            .await
        {
            Err(StoreError::Unreadable(reason)) => reason,
            page => return page,
        };
        let next = self.next_live_note(after).await?;
        let problem = next.map(|note_id| NoteProblem {
            note_id,
            problem: format!("Postgres cannot read it, or what is made of it: {reason}"),
            is_mendable: false,
        });
        Ok((
            next.map(|note_id| (note_id, 1)),
            problem.into_iter().collect(),
        ))
    }

    async fn problem_page(
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
        let rows = self.answered(Limit::Batch, self.page(page)).await?;
        let looked_at = rows.last().map(|row| (row.note_id, rows.len() as u64));
        let problems = rows.into_iter().filter_map(|row| {
            let problem = row.problem?;
            Some(NoteProblem {
                note_id: row.note_id,
                problem,
                is_mendable: true,
            })
        });
        Ok((looked_at, problems.collect()))
    }

    /// Raises the sequence of tokens above `revision`. Returns the last token that was drawn.
    pub async fn raise_tokens(&self, revision: i64) -> Result<i64, StoreError> {
        let work = async {
            // One process at a time: the second of two `setval` could set the sequence back.
            let mut tx = self.begin().await?;
            self.lock_setup(&mut tx).await?;
            let last = sqlx::query_file_scalar!("sql/queries/raise_tokens.sql", revision)
                .fetch_one(&mut *tx)
                .await?;
            tx.commit().await?;
            Ok::<_, StoreError>(last)
        };
        self.answered(Limit::Statement, work).await
    }

    /// The last token that was drawn; 0 before the first claim.
    pub async fn last_token(&self) -> Result<i64, StoreError> {
        let last = sqlx::query_file_scalar!("sql/queries/last_token.sql").fetch_one(&self.pool);
        self.answered(Limit::Statement, last).await
    }

    /// Those of `hashes` whose text has a vector in the vector space of `version`, which need not
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
        .fetch_all(&self.keyed)
        .await?;
        let hash = |row: Vec<u8>| row.try_into().ok().map(TextHash);
        Ok(rows.into_iter().filter_map(hash).collect())
    }
}
