//! Reading notes, known vectors and chunks.

use std::collections::HashMap;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::unreadable::{read_each, read_those_that_can_be};
use super::write::{COMMAND, affected};
use super::{LOCKED_PAUSE, Limit, Store, StoreError};
use crate::note::{Labels, MAX_CUTS_BYTES, Note, TextHash};

/// Notes as they are now.
#[derive(Debug)]
pub struct LoadedNotes {
    /// Those that have a row.
    pub notes: HashMap<Uuid, Note>,
    /// Those that Postgres cannot read, and what it says. One whose text alone is lost is in `notes` too, without
    /// its text.
    pub unreadable: HashMap<Uuid, String>,
    /// The time by the clock of Postgres; if no note has a row, that of this process.
    pub now: DateTime<Utc>,
}

/// Selects notes: every field that is set must match.
#[derive(Debug, Clone, Default)]
#[expect(
    missing_docs,
    reason = "the columns of the same names say what they are"
)]
pub struct Selection {
    pub note_ids: Option<Vec<Uuid>>,
    pub tenant_id: Option<String>,
    pub project_id: Option<String>,
    pub agent_id: Option<String>,
    pub scope: Option<String>,
    pub kind: Option<String>,
}

/// What a live note is chunked from.
#[derive(Debug, Clone)]
pub struct LiveText {
    /// Its id in `memory_notes`.
    pub note_id: Uuid,
    /// Its text; empty if Postgres cannot read it.
    pub text: String,
    /// It may stand in the lead.
    pub title: Option<String>,
    /// Its `source_ref.cuts`, as Postgres writes it.
    pub cuts: Option<String>,
    /// It decides on the chunking settings.
    pub kind: String,
    /// When it changed last.
    pub updated_at: DateTime<Utc>,
}

impl Store {
    /// The rows of these notes. A text of more than `max_bytes` is not read: `text` is empty and
    /// `text_bytes` has its length. Fails if Postgres can read none of them, and none of three others.
    pub async fn load_notes(
        &self,
        ids: &[Uuid],
        max_bytes: u64,
    ) -> Result<LoadedNotes, StoreError> {
        let work = async {
            let read = |ids| self.note_rows(ids, max_bytes as i64);
            let (mut rows, unreadable) = read_each(ids, read).await?;
            let lost: Vec<Uuid> = unreadable.iter().map(|(id, _)| **id).collect();
            if rows.is_empty() && !lost.is_empty() {
                let others = self.others(&lost).await?;
                let read = |ids| self.note_rows(ids, max_bytes as i64);
                let (found, lost) = read_each(&others, read).await?;
                if let ([], Some((_, reason))) = (&found[..], lost.first()) {
                    return Err(StoreError::Unavailable(reason.clone()));
                }
            }
            if !lost.is_empty() {
                // Their labels and their end may be readable.
                rows.extend(read_each(&lost, |ids| self.note_rows(ids, 0)).await?.0);
            }
            let unreadable = unreadable.into_iter().map(|(id, reason)| (*id, reason));
            Ok(LoadedNotes {
                now: rows.first().map_or_else(Utc::now, |(_, now)| *now),
                notes: rows
                    .into_iter()
                    .map(|(note, _)| (note.note_id, note))
                    .collect(),
                unreadable: unreadable.collect(),
            })
        };
        self.measured("load", work).await
    }

    /// Notes, and when they were read.
    async fn note_rows(
        &self,
        ids: &[Uuid],
        max_bytes: i64,
    ) -> Result<Vec<(Note, DateTime<Utc>)>, StoreError> {
        let loaded = sqlx::query_file!(
            "sql/queries/load_notes.sql",
            ids,
            max_bytes as _,
            MAX_CUTS_BYTES as i32
        );
        let rows = loaded.fetch_all(&self.keyed).await?;
        let notes = rows.into_iter().map(|row| {
            let note = Note {
                note_id: row.note_id,
                text: row.text,
                text_bytes: row.text_bytes as u64,
                title: row.title,
                cuts: row.cuts,
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
            };
            (note, row.now)
        });
        Ok(notes.collect())
    }

    /// Three notes that are not among these, if there are so many.
    async fn others(&self, notes: &[Uuid]) -> Result<Vec<Uuid>, StoreError> {
        let others = "select note_id from memory_notes where note_id <> all ($1) limit 3";
        Ok(sqlx::query_scalar(others)
            .bind(notes)
            .fetch_all(&self.pool)
            .await?)
    }

    /// The vectors of those texts that were embedded before, under this version or another one of
    /// the same vector space.
    pub async fn known_vectors(
        &self,
        version: &str,
        hashes: &[TextHash],
    ) -> Result<HashMap<TextHash, Arc<[f32]>>, StoreError> {
        let work = async {
            let hashes: Vec<&[u8]> = hashes.iter().map(|h| &h.0[..]).collect();
            let rows = read_those_that_can_be(&hashes, |hashes| async move {
                sqlx::query_file!("sql/queries/known_vectors.sql", version, hashes as _)
                    .fetch_all(&self.keyed)
                    .await
                    .map_err(StoreError::from)
            })
            .await?;
            let known = rows.into_iter().filter_map(|row| {
                let hash: [u8; 32] = row.text_sha256.try_into().ok()?;
                Some((TextHash(hash), Arc::from(Vec::from(row.vec))))
            });
            Ok(known.collect())
        };
        self.measured("lookup", work).await
    }

    /// How many notes are due or leased, and the bytes of the texts of those that are live.
    pub async fn due_notes(&self, version: &str) -> Result<(u64, u64), StoreError> {
        let due = sqlx::query_file!("sql/queries/due_notes.sql", version);
        let due = self.read_one(Limit::EveryNote, &[], due);
        let due = self
            .measured_within(Limit::EveryNote, "observe", due)
            .await?;
        Ok((due.notes as u64, due.bytes as u64))
    }

    /// The notes of this tenant and this agent.
    pub async fn evaluated_notes(
        &self,
        tenant: &str,
        agent: &str,
    ) -> Result<Vec<Uuid>, StoreError> {
        let work = async {
            let mut tx = self.begin_long(Limit::EveryNote).await?;
            let notes = sqlx::query_file_scalar!("sql/queries/evaluated_notes.sql", tenant, agent)
                .fetch_all(&mut *tx)
                .await?;
            tx.commit().await?;
            Ok(notes)
        };
        self.measured_within(Limit::EveryNote, "import", work).await
    }

    /// Deletes the notes of this tenant and this agent whose key is not among `keep`, and returns
    /// them. The trigger enqueues them.
    pub async fn delete_evaluated(
        &self,
        tenant: &str,
        agent: &str,
        keep: &[String],
    ) -> Result<Vec<Uuid>, StoreError> {
        let work = async {
            let mut gone = Vec::new();
            loop {
                let page =
                    sqlx::query_file!("sql/queries/delete_evaluated.sql", tenant, agent, keep);
                let deleted = self.read_one(Limit::EveryNote, &[], page).await?;
                gone.extend(deleted.gone);
                if !deleted.has_more {
                    return Ok(gone);
                }
                tokio::time::sleep(LOCKED_PAUSE).await;
            }
        };
        self.measured_within(Limit::EveryNote, "import", work).await
    }

    /// How many notes of this tenant and this agent are not indexed yet, and how many of those
    /// are dead-lettered.
    pub async fn evaluated_waiting(
        &self,
        tenant: &str,
        agent: &str,
        version: &str,
    ) -> Result<(u64, u64), StoreError> {
        let row = sqlx::query_file!("sql/queries/evaluated_waiting.sql", tenant, agent, version);
        let row = self.read_one(Limit::EveryNote, &[], row);
        let row = self
            .measured_within(Limit::EveryNote, "observe", row)
            .await?;
        Ok((row.waiting as u64, row.dead as u64))
    }

    /// Whether the tenant has notes of other agents.
    pub async fn has_other_agents(&self, tenant: &str, agent: &str) -> Result<bool, StoreError> {
        let work = async {
            let mut tx = self.begin_long(Limit::EveryNote).await?;
            let found = sqlx::query_scalar(
                "select exists (select from memory_notes
                                 where tenant_id::text = $1 and agent_id::text <> $2)",
            )
            .bind(tenant)
            .bind(agent)
            .fetch_one(&mut *tx)
            .await?;
            tx.commit().await?;
            Ok(found)
        };
        self.measured_within(Limit::EveryNote, "observe", work)
            .await
    }

    /// Enqueues the selected notes, and returns how many.
    pub async fn enqueue(&self, which: &Selection) -> Result<u64, StoreError> {
        let enqueue = sqlx::query_file!(
            "sql/queries/enqueue.sql",
            which.note_ids.as_deref(),
            which.tenant_id.as_deref(),
            which.project_id.as_deref(),
            which.agent_id.as_deref(),
            which.scope.as_deref(),
            which.kind.as_deref()
        );
        let enqueued = affected(&self.pool, COMMAND, enqueue);
        self.command("enqueue", enqueued).await
    }

    /// The texts of live notes with ids above `after`, in order of their ids: at least one, at
    /// most `max_notes`, and about `max_bytes` together.
    pub async fn live_texts(
        &self,
        after: Uuid,
        max_notes: usize,
        max_bytes: usize,
    ) -> Result<Vec<LiveText>, StoreError> {
        let mut limit = max_notes;
        loop {
            match self.text_page(after, limit, max_bytes).await {
                Err(StoreError::Unreadable(_)) if limit > 1 => limit /= 2,
                Err(StoreError::Unreadable(_)) => {
                    let next = self.next_live_note(after).await?.into_iter();
                    let without_text = |note_id| LiveText {
                        note_id,
                        text: String::new(),
                        title: None,
                        cuts: None,
                        kind: String::new(),
                        updated_at: DateTime::UNIX_EPOCH,
                    };
                    return Ok(next.map(without_text).collect());
                }
                page => return page,
            }
        }
    }

    async fn text_page(
        &self,
        after: Uuid,
        max_notes: usize,
        max_bytes: usize,
    ) -> Result<Vec<LiveText>, StoreError> {
        let page = sqlx::query_file!(
            "sql/queries/live_texts.sql",
            after,
            max_notes as i64,
            max_bytes as i64,
            MAX_CUTS_BYTES as i32
        );
        let rows = self.page(page).await?;
        Ok(rows
            .into_iter()
            .map(|row| LiveText {
                note_id: row.note_id,
                text: row.text,
                title: row.title,
                cuts: row.cuts,
                kind: row.kind,
                updated_at: row.updated_at,
            })
            .collect())
    }
}
