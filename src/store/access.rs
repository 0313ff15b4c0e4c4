//! Access labels of notes whose new text cannot be indexed yet: their points keep the old text
//! and get the new labels.

use std::sync::Arc;

use uuid::Uuid;

use super::{Limit, Store, StoreError, Target};
use crate::note::AccessHash;

/// The old chunks of notes, under a new token.
#[derive(Debug)]
pub struct TakenOver {
    /// The chunks that have a vector.
    pub chunks: Vec<OldChunk>,
    /// The notes whose lease was still held.
    pub notes: Vec<Uuid>,
    /// The collections that must have the points now.
    pub targets: Vec<Target>,
}

/// A chunk of a note's old text.
#[derive(Debug)]
pub struct OldChunk {
    /// See [`crate::note::chunk_id`].
    pub chunk_id: Uuid,
    /// The note it belongs to.
    pub note_id: Uuid,
    /// 0 for the first chunk of the note.
    pub chunk_index: u32,
    /// Byte offset of the first byte in the old text.
    pub start: usize,
    /// Byte offset behind the last byte.
    pub end: usize,
    /// What was embedded before `text`.
    pub lead: String,
    /// `old_text[start..end]`
    pub text: String,
    /// The vector of both.
    pub vector: Option<Arc<[f32]>>,
}

impl Store {
    /// Sets the revision of the chunks of `notes` to `token`, so that their points can be written
    /// again. Until [`Store::record_access`] the labels of those points are unknown.
    pub async fn take_over_chunks(
        &self,
        version: &str,
        token: i64,
        notes: &[Uuid],
    ) -> Result<TakenOver, StoreError> {
        let work = async {
            let mut tx = self.begin().await?;
            let held = sqlx::query_file!("sql/queries/lock_leases.sql", version, notes, token)
                .fetch_all(&mut *tx)
                .await?;
            let held: Vec<Uuid> = held.into_iter().map(|row| row.note_id).collect();
            let rows = sqlx::query_file!("sql/queries/take_over_chunks.sql", version, token, &held)
                .fetch_all(&mut *tx)
                .await?;
            let chunks = rows.into_iter().map(|row| OldChunk {
                chunk_id: row.chunk_id,
                note_id: row.note_id,
                chunk_index: row.chunk_index as u32,
                start: row.start_offset as usize,
                end: row.end_offset as usize,
                lead: row.lead,
                text: row.text,
                vector: row.vec.map(|vec| Arc::from(Vec::from(vec))),
            });
            let chunks = chunks.collect();
            let targets =
                sqlx::query_file_as!(Target, "sql/queries/target_collections.sql", version)
                    .fetch_all(&mut *tx)
                    .await?;
            tx.commit().await?;
            Ok(TakenOver {
                chunks,
                notes: held,
                targets,
            })
        };
        self.measured_within(Limit::Batch, "commit", work).await
    }

    /// Records the access labels of the points of notes, after the vector engine has confirmed
    /// the upserts.
    pub async fn record_access(
        &self,
        version: &str,
        token: i64,
        notes: &[(Uuid, AccessHash)],
    ) -> Result<(), StoreError> {
        let ids: Vec<Uuid> = notes.iter().map(|(id, _)| *id).collect();
        let hashes: Vec<&[u8]> = notes.iter().map(|(_, hash)| &hash.0[..]).collect();
        let recorded = sqlx::query_file!(
            "sql/queries/record_access.sql",
            version,
            token,
            &ids,
            &hashes as _
        );
        self.asked("ack", recorded.execute(&self.pool)).await?;
        Ok(())
    }
}
